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
  const size_t n_experts = extent(*node.src[0], 2), n_used = extent(ids, 0), n_rows = row_count(node);
  const auto expert_of = [&](size_t row) {
    return static_cast<size_t>(reinterpret_cast<const int32_t*>(row_at(ids, row / n_used, 0, 0))[row % n_used]);
  };
  std::fill_n(ends_.begin(), n_experts, 0);
  for (size_t row = 0; row < n_rows; ++row) ++ends_[expert_of(row)];
  for (size_t expert = 0, begin = 0; expert < n_experts; ++expert) begin += std::exchange(ends_[expert], begin);
  for (size_t row = 0; row < n_rows; ++row) rows_[ends_[expert_of(row)]++] = row;
}

size_t expert_input(const ggml_tensor& node, size_t row) {
  const size_t n_used = extent(node, 1), n_inputs = extent(*node.src[1], 1);
  return row / n_used * n_inputs + row % n_used % n_inputs;
}

}  // namespace corosrv
