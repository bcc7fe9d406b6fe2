// Reads ggml's tensors: extents as sizes, rows as pointers.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>

namespace corosrv {

inline size_t extent(const ggml_tensor& tensor, int dimension) { return static_cast<size_t>(tensor.ne[dimension]); }

// Returns the rows of all planes together.
inline size_t row_count(const ggml_tensor& tensor) { return static_cast<size_t>(ggml_nrows(&tensor)); }

inline uint8_t* row_at(const ggml_tensor& tensor, size_t i1, size_t i2, size_t i3) {
  return static_cast<uint8_t*>(tensor.data) + i1 * tensor.nb[1] + i2 * tensor.nb[2] + i3 * tensor.nb[3];
}

// Returns the row with this number, counted through all planes.
inline uint8_t* row_at(const ggml_tensor& tensor, size_t row) {
  const size_t n1 = extent(tensor, 1), n2 = extent(tensor, 2);
  return row_at(tensor, row % n1, row / n1 % n2, row / n1 / n2);
}

}  // namespace corosrv
