// Makes a model's context. Whether it fits into memory was planned before.
#pragma once

#include <memory>

#include "kernels/graph_kernels.h"
#include "llama/device_candidates.h"
#include "llama/handles.h"
#include "llama/slot_pages.h"
#include "model/options.h"

namespace corosrv {

// The most rows of one llama_decode for which vectors are made: libllama reserves room for the logits of each, too.
constexpr int32_t kVectorRows = 128;

// Returns the routines for packed weights that a set has on this processor; null for none.
const ProductKernels* products_of(KernelSet kernels);

// What a context is made for.
struct ContextPurpose {
  int32_t tokens;                    // of a slot, or its part of what all share
  Pooling pooling = Pooling::kMean;  // libllama pools for kRank alone, which needs the model's classification head
  bool reads_whole = false;          // each sequence is computed in one piece, for its vectors alone
  GraphKernels* kernels = nullptr;   // null: libllama computes everything
};

// Returns whether all slots share one cache. What is computed in one piece keeps nothing that could be shared.
inline bool shares_context(const ModelOptions& options, const ContextPurpose& purpose) {
  return options.shares_context && !purpose.reads_whole;
}

// A context of libllama, which has taken no memory yet for what its slots are to hold.
struct Context {
  std::unique_ptr<SlotPages> pages;              // null where libllama's nodes are not watched
  std::unique_ptr<DeviceCandidates> candidates;  // null where all logits come to the processor
  ContextHandle handle;                          // null if it could not be made

  llama_context* get() const { return handle.get(); }
  explicit operator bool() const { return handle != nullptr; }
};

// Any thread. Takes seconds where the KV cache has gigabytes.
Context make_context(llama_model* model, const ModelOptions& options, const ContextPurpose& purpose);

// Returns the largest number of rows of one step.
int32_t rows_of_step(const ModelOptions& options, const ContextPurpose& purpose);

// Makes the kernels that replace parts of libllama's graphs; returns null if there is nothing to replace.
// `is_deterministic`: no row's bits may depend on the other rows of a batch. `load` outlives them.
std::unique_ptr<GraphKernels> make_kernels(const ModelOptions& options, const llama_model* model, bool is_deterministic,
                                           LoadWatch& load);

}  // namespace corosrv
