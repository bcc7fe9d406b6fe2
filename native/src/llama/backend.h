// Implements the Backend interface with libllama.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/backend.h"

namespace corosrv {

// Loads a model and makes its context, with one KV stream per slot; takes seconds. Returns null on failure, with the
// reason in `status`, worded for the operator. `adapters`: paths of LoRA files; the first becomes adapter number 0.
std::unique_ptr<Backend> make_llama_backend(const corosrv_options& options, const std::vector<std::string>& adapters,
                                            Status& status);

}  // namespace corosrv
