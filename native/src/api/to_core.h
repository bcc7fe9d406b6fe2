// The C API's structs as the values that the core works with. What comes in was checked (api/check.h); any thread.
#pragma once

#include <string>
#include <vector>

#include "corosrv.h"
#include "handover/slot_request.h"
#include "loop/engine.h"
#include "model/backend.h"
#include "model/embedded_rows.h"
#include "model/options.h"
#include "model/types.h"

namespace corosrv {

Engine::Limits to_engine_limits(const corosrv_options& from);
ModelOptions to_model_options(const corosrv_options& from);
// Of the model that guesses for that one.
ModelOptions to_draft_options(const corosrv_options& from);
SyntheticOptions to_synthetic_options(const corosrv_synthetic& from);

std::vector<std::string> to_strings(const corosrv_text* texts, size_t n_texts);
// Those of a task's embedding rows.
std::vector<RowSegment> to_segments(const corosrv_task& from);
// `index`: of the task within its job.
Task to_task(const corosrv_task& from, size_t index, const ModelInfo& model);
SlotContent to_slot_content(const corosrv_slot_content& from);
SlotRequest::Action to_action(int action);

}  // namespace corosrv
