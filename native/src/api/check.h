// What callers of the C API may say: every number, before anything is made of it.
#pragma once

#include <string>

#include "base/status.h"
#include "corosrv.h"
#include "model/backend.h"

namespace corosrv {

inline Status invalid(const std::string& message) { return Status(StatusCode::kInvalid, message); }

Status check_options(const corosrv_options& options);
Status check_grammar_limits(const corosrv_grammar_limits& limits);
Status check_task(const corosrv_task& task, const Backend& backend);
// What came out of a file may be anything.
Status check_content(const corosrv_slot_content& content, const Backend& backend);

}  // namespace corosrv
