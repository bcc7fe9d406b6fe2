// Implements the Backend interface with libllama.
#pragma once

#include <memory>
#include <string>

#include "base/load_watch.h"
#include "model/backend.h"
#include "model/options.h"

namespace corosrv {

// Loads a model and makes its context, with one KV stream per slot; takes seconds. Returns null on failure, with the
// reason in `status`, worded for the operator. `load` has to outlive what is returned.
std::unique_ptr<Backend> make_llama_backend(const ModelOptions& options, LoadWatch& load, Status& status);

// Loads the vocabulary of a file, without its weights. Returns null on failure, as above.
std::unique_ptr<Vocabulary> make_llama_vocabulary(const std::string& path, Status& status);

}  // namespace corosrv
