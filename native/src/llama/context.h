// The context of a model: its parameters, and whether the machine has room for it.
#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/graph_kernels.h"
#include "llama/handles.h"

namespace corosrv {

// Rows of one llama_decode that may have vectors. libllama computes logits with them, in as many rows of memory.
constexpr int32_t kVectorRows = 128;

struct ContextWish {
  int32_t tokens;                    // of a slot
  Pooling pooling = Pooling::kMean;  // done by libllama where its classification head is needed, otherwise by ourselves
  bool reads_whole = false;          // sequences are computed in one piece, for their vectors alone
  GraphKernels* kernels = nullptr;   // null: libllama's alone compute
};

llama_context_params context_params(const corosrv_options& options, const ContextWish& wish);

// Rows of one step, at most.
int32_t rows_of_step(const corosrv_options& options, const ContextWish& wish);

// Whether the KV cache fits into what memory is left; says what to do when it does not.
Status check_memory(const llama_model* model, int32_t slots, int32_t context);

// Our kernels, or null where they have no place. `is_deterministic`: whatever is computed together, no row's bits may
// depend on the others.
std::unique_ptr<GraphKernels> make_kernels(const corosrv_options& options, const llama_model* model, int32_t context,
                                           bool is_deterministic);

}  // namespace corosrv
