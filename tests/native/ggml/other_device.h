// A device beside the processor, as ggml's scheduler sees one: it computes in memory of its own, with ggml's kernels.
#pragma once

#include <ggml-backend.h>

namespace corosrv {

// What ggml may do with the memory of the device.
struct OtherMemory {
  ggml_backend_buffer_type_t own;      // which the processor cannot read
  ggml_backend_buffer_type_t visible;  // of the device as well, and the processor can read it
  ggml_backend_buffer_type_t lent;     // in which the processor keeps what the device fetches
};

ggml_backend_dev_t other_device();
OtherMemory other_memory();

// Returns how many nodes the device has computed so far. It fails when it is given a custom operation.
extern "C" size_t n_computed_elsewhere();

// Lets libllama place models on the device, in this process and from now on.
extern "C" void register_other_device();

}  // namespace corosrv
