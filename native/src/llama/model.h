// A model file: what can be told of it, and loading it.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "llama/handles.h"
#include "model/backend.h"

namespace corosrv {

// Loads the weights; takes seconds. Null, and a status in words for whoever chose the file, when they are none that can
// be served. `may_repack`: libllama may rearrange weights for kernels that are faster for batches.
Model load_model(const std::string& path, bool may_repack, Status& status);

// Loads LoRA adapters, which live as long as the model. Upon failure `status` names the file.
std::vector<llama_adapter_lora*> load_adapters(llama_model* model, const std::vector<std::string>& paths,
                                               Status& status);

// That libllama could not do `what` for this file, and its reason.
Status failure(const std::string& what, const std::string& path);

// What becomes of the vectors of this model's tokens: as `wanted`, a corosrv_pooling, or as the model says. A failure
// where scores are wanted, and the file has no head that makes them.
Status find_pooling(const llama_model* model, const std::string& path, int32_t wanted, Pooling& pooling);

// Recurrent memories are no lists of tokens that could be cut and copied.
bool can_copy_memory(const llama_model* model);

// `context`: tokens of a slot.
ModelInfo describe(const llama_model* model, int32_t context);

}  // namespace corosrv
