// Multiplies a block-quantised weight matrix with many rows of activations, reading each weight once for all rows.
//
// Pure arithmetic: of ggml it uses the layout of two block formats alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace corosrv {

// Numbers of one block, which share a scale.
constexpr size_t kBlockValues = 32;

// 32 activations as 8-bit integers. They are rounded as ggml rounds them, so that products differ from ggml's only in
// the order of their float sums.
struct ActivationBlock {
  int8_t quants[kBlockValues];
  float scale;       // the value of quant 1
  float scaled_sum;  // the sum of all quants times the scale
  int32_t sum;       // the sum of all quants
};

enum class BlockFormat {
  kQ4_1,  // scale and minimum as 16-bit floats, 32 unsigned nibbles
  kQ8_0,  // scale as 16-bit float, 32 signed bytes
};

// A weight matrix repacked so that one vector register holds the same columns of 16 rows. Immutable: any number of
// threads may call its methods.
//
// An output depends on its row of weights and its row of activations alone, not on the number of rows or on how threads
// share the work (invariant I9).
class PackedMatrix {
 public:
  // Rows that are packed and computed together; the number of rows is a multiple of it.
  static constexpr size_t kGroupRows = 16;

  // Returns whether this processor has the instructions. If not, nothing else of this file may be called.
  static bool is_supported();
  // Returns whether a matrix of this shape can be packed.
  static bool fits(size_t n_rows, size_t n_columns);

  // Copies `blocks`, a matrix in ggml's layout whose shape fits; throws std::bad_alloc.
  PackedMatrix(BlockFormat format, const void* blocks, size_t n_rows, size_t n_columns);

  size_t n_groups() const { return n_groups_; }
  size_t n_blocks() const { return n_blocks_; }  // of one row
  size_t bytes() const { return n_groups_ * group_bytes_; }

  // Computes output [i * n_outputs + j] for each row i of `activations` (n_rows rows of n_blocks() blocks) and each
  // weight row j in the groups [from, to). n_outputs is the matrix's number of rows.
  void multiply(const ActivationBlock* activations, size_t n_rows, size_t from, size_t to, float* output) const;

 private:
  struct Free {
    void operator()(uint8_t* data) const;
  };

  const BlockFormat format_;
  const size_t n_groups_;
  const size_t n_blocks_;
  const size_t group_bytes_;
  const std::unique_ptr<uint8_t[], Free> data_;
};

// Quantises n_blocks times 32 numbers.
void quantize(const float* values, size_t n_blocks, ActivationBlock* blocks);

}  // namespace corosrv
