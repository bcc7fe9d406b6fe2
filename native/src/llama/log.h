// Keeps libllama's error log: its functions return null without a reason, and write the reason to their log.
#pragma once

#include <string>

namespace corosrv {

// Redirects libllama's log: errors are kept for take_last_error(), and nothing is printed. May be called by any thread,
// like take_last_error().
void keep_llama_errors();

// Returns the first line that libllama wrote as an error since the last call, without the name of the function that
// wrote it; empty if there was none.
std::string take_last_error();

}  // namespace corosrv
