// The context of a model: its parameters, and whether the machine has room for it.
#pragma once

#include <memory>

#include "graph_kernels.h"
#include "llama_handles.h"
#include "status.h"

namespace corosrv {

// `context`: tokens of a slot. `kernels`: null where libllama's alone compute.
llama_context_params context_params(const corosrv_options& options, int32_t context, GraphKernels* kernels);

// Whether the KV cache fits into what memory is left; says what to do when it does not.
Status check_memory(const llama_model* model, int32_t slots, int32_t context);

// Our kernels, or null where they have no place.
std::unique_ptr<GraphKernels> make_kernels(const corosrv_options& options, const llama_model* model, int32_t context);

}  // namespace corosrv
