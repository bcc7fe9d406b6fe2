// Knows which operations of ggml give a token the same bits whatever else a batch holds.
#pragma once

struct ggml_tensor;

namespace corosrv {

// Returns whether ggml computes each row of this node by itself, with the same instructions for any number of rows. It
// does not do so for matrix products. Unknown operations are taken to depend on their neighbours.
bool is_row_independent(const ggml_tensor& node);

}  // namespace corosrv
