// The C API's structs as the values that the core works with, and back. What comes in was checked (c_check.h).
#pragma once

#include <string>
#include <vector>

#include "corosrv.h"
#include "grammar/gbnf.h"
#include "handover/slot_request.h"
#include "model/backend.h"
#include "model/types.h"

namespace corosrv {

GrammarLimits to_grammar_limits(const corosrv_grammar_limits& from);
std::vector<std::string> to_strings(const corosrv_text* texts, size_t n_texts);
// `index`: of the task within its job.
Task to_task(const corosrv_task& from, size_t index, const ModelInfo& model);
SlotContent to_slot_content(const corosrv_slot_content& from);
SlotErrand::Action to_action(int action);

// Points into `from`.
corosrv_chunk to_chunk(const Chunk& from);

}  // namespace corosrv
