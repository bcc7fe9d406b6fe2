// Which operations of ggml give a token the same bits whatever else a batch holds.
#pragma once

struct ggml_tensor;

namespace corosrv {

// Whether ggml computes every row of this node alone, by the same instructions whatever the number of rows. Matrix
// products are none of these. An operation that is not known is taken to depend on its neighbours.
bool is_row_independent(const ggml_tensor& node);

}  // namespace corosrv
