// Why libllama failed: its own functions return null without a reason, and write it to their log.
#pragma once

#include <string>

namespace corosrv {

// From now on errors are kept for last_reason(), and nothing is printed. Any thread, as the other.
void keep_llama_errors();

// The first line of libllama's errors since the last call, without the name of the function that wrote it.
std::string last_reason();

}  // namespace corosrv
