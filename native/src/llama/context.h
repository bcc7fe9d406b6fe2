// Chooses the parameters of a model's context, and checks whether the machine has memory for it.
#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/graph_kernels.h"
#include "llama/handles.h"
#include "model/options.h"

namespace corosrv {

// The most rows of one llama_decode for which vectors are made: libllama reserves room for the logits of each, too.
constexpr int32_t kVectorRows = 128;

// What a context is made for.
struct ContextPurpose {
  int32_t tokens;                    // capacity of a slot
  Pooling pooling = Pooling::kMean;  // libllama pools for kRank alone, which needs the model's classification head
  bool reads_whole = false;          // each sequence is computed in one piece, for its vectors alone
  GraphKernels* kernels = nullptr;   // null: libllama computes everything
};

llama_context_params context_params(const ModelOptions& options, const ContextPurpose& purpose);

// Returns the largest number of rows of one step.
int32_t rows_of_step(const ModelOptions& options, const ContextPurpose& purpose);

// Checks that the KV cache fits into the memory that is available. The failure says which settings to lower.
Status check_memory(const llama_model* model, const ModelOptions& options, int32_t context);

// Makes the kernels that replace parts of libllama's graphs; returns null if there is nothing to replace.
// `is_deterministic`: no row's bits may depend on the other rows of a batch.
std::unique_ptr<GraphKernels> make_kernels(const ModelOptions& options, const llama_model* model, int32_t context,
                                           bool is_deterministic);

}  // namespace corosrv
