// Groups the rows of a mixture of experts by the experts that compute them.
#pragma once

#include <cstddef>
#include <vector>

struct ggml_tensor;

namespace corosrv {

// The output rows of a MUL_MAT_ID, one for each token and each expert that it uses, grouped by expert. reserve() is
// called by the thread that calls llama_decode, the rest by ggml's compute threads.
class ExpertOrder {
 public:
  // Makes room for the rows of a node; throws std::bad_alloc.
  void reserve(const ggml_tensor& node);
  // Groups the rows, in their own order within each group. The order serves all nodes with the same ids for which room
  // was made before. One thread calls this, while the others wait.
  void sort(const ggml_tensor& node);

  // Returns the rows of an expert: those from begin() to end() in the order.
  size_t begin(size_t expert) const { return expert == 0 ? 0 : ends_[expert - 1]; }
  size_t end(size_t expert) const { return ends_[expert]; }
  size_t row(size_t i) const { return rows_[i]; }

 private:
  std::vector<size_t> rows_;
  std::vector<size_t> ends_;  // of each expert's group
};

// Returns the number of the input row from which a MUL_MAT_ID computes an output row: a token has one for each expert
// that it uses, or a single one.
size_t expert_input(const ggml_tensor& node, size_t row);

}  // namespace corosrv
