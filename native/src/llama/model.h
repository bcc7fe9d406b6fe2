// Loads a model file and reads its description.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/load_watch.h"
#include "base/status.h"
#include "llama/handles.h"
#include "model/backend.h"
#include "model/options.h"

namespace corosrv {

// Loads the weights; takes seconds. Returns null if the file cannot be served, or the load is given up, with the reason
// in `status`, worded for the operator. `may_repack`: libllama may rearrange weights for kernels that are faster for
// batches. It must not where `has_own_products` and PackedMatrix can hold nearly all of them: what it has rearranged
// stays with its own kernels.
Model load_model(const std::string& path, const Placement& placement, bool may_repack, bool has_own_products,
                 LoadWatch& load, Status& status);

// Loads the vocabulary alone. Returns null as load_model() does.
Model load_vocabulary(const std::string& path, Status& status);

// Loads LoRA adapters, which the model owns. On failure `status` names the file.
std::vector<llama_adapter_lora*> load_adapters(llama_model* model, const std::vector<std::string>& paths,
                                               Status& status);

// Returns the failure of a libllama function: `what` it could not do, the file's name, and the reason from its log.
Status failure(const std::string& what, const std::string& path);

// Chooses how a text's token vectors become one: as `setting` says, or as the model says where that is none. Fails if
// scores are wanted and the file has no classification head to compute them.
Status find_pooling(const llama_model* model, const std::string& path, std::optional<Pooling> setting,
                    Pooling& pooling);

// Returns whether a slot's memory can be copied, and cut at any token. Recurrent memories cannot.
bool can_copy_memory(const llama_model* model);

// Reads the model's description. `context`: tokens of a slot.
ModelInfo describe(const llama_model* model, int32_t context);

}  // namespace corosrv
