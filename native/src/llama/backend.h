// libllama behind the Backend interface; llama_handles.h alone includes llama.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/backend.h"

namespace corosrv {

// Loads a model and makes its context, one KV stream per slot. Takes seconds. Upon failure `status` says why, in
// words for whoever chose the file, and the result is null. `adapters`: paths, in the order of their numbers.
std::unique_ptr<Backend> make_llama_backend(const corosrv_options& options, const std::vector<std::string>& adapters,
                                            Status& status);

}  // namespace corosrv
