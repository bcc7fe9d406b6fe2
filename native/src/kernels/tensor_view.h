// Reads ggml's tensors: extents as sizes, rows as pointers, places as what a step reads or writes.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>

#include "kernels/node_run.h"

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

inline Access access_to(const ggml_tensor& tensor, bool is_written, Division division) {
  const auto* const begin = static_cast<const char*>(tensor.data);
  return {begin, begin + ggml_nbytes(&tensor), is_written, division};
}

inline Access reads(const ggml_tensor& tensor, Division division = {}) { return access_to(tensor, false, division); }
inline Access writes(const ggml_tensor& tensor, Division division = {}) { return access_to(tensor, true, division); }

}  // namespace corosrv
