#include "kernels/expert_order.h"

#include <ggml.h>

#include <algorithm>
#include <utility>

#include "kernels/tensor_view.h"

namespace corosrv {

void ExpertOrder::reserve(const ggml_tensor& node) {
  rows_.resize(std::max(rows_.size(), row_count(node)));
  ends_.resize(std::max(ends_.size(), extent(*node.src[0], 2)));
}

void ExpertOrder::sort(const ggml_tensor& node) {
  const ggml_tensor& ids = *node.src[2];
  const size_t n_used = extent(ids, 0), n_rows = row_count(node);
  const auto expert_of = [&](size_t row) {
    const uint8_t* const id = row_at(ids, row / n_used, 0, 0) + row % n_used * ids.nb[0];
    return static_cast<size_t>(*reinterpret_cast<const int32_t*>(id));
  };
  std::fill(ends_.begin(), ends_.end(), 0);
  for (size_t row = 0; row < n_rows; ++row) ++ends_[expert_of(row)];
  size_t begin = 0;
  for (size_t& end : ends_) begin += std::exchange(end, begin);
  for (size_t row = 0; row < n_rows; ++row) rows_[ends_[expert_of(row)]++] = row;
}

size_t expert_input(const ggml_tensor& node, size_t row) {
  const size_t n_used = extent(node, 1), n_inputs = extent(*node.src[1], 1);
  return row / n_used * n_inputs + row % n_used % n_inputs;
}

}  // namespace corosrv
