// Products of a block-quantised weight matrix with many rows of activations, each weight read once for all of them.
//
// Pure arithmetic: knows the layout of two of ggml's block formats and nothing else of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace corosrv {

// Values of one block: they share a scale.
constexpr size_t kBlockValues = 32;

// 32 activations as 8-bit integers, rounded the way ggml rounds them, so that products differ by the order of their
// float sums alone.
struct ActivationBlock {
  int8_t quants[kBlockValues];
  float scale;       // of one quant
  float scaled_sum;  // of all quants
  int32_t sum;       // of all quants, unscaled
};

enum class BlockFormat {
  kQ4_1,  // scale and minimum as 16-bit floats, 32 unsigned nibbles
  kQ8_0,  // scale as 16-bit float, 32 signed bytes
};

// A weight matrix repacked so that one vector register holds the same columns of 16 rows. Immutable: all methods are
// const and may be called by any number of threads.
//
// The value of an output depends on its row of weights and its row of activations only: neither on how many rows of
// activations there are, nor on how the work was divided among threads (invariant I9).
class PackedMatrix {
 public:
  // Rows that are packed and computed together; a matrix has a whole number of such groups.
  static constexpr size_t kGroupRows = 16;

  // Whether this processor can run the products. Without it, call nothing else of this file.
  static bool is_supported();
  // Whether a matrix of this shape can be packed.
  static bool fits(size_t n_rows, size_t n_columns);

  // Copies `blocks`, a matrix in ggml's layout whose shape fits; throws std::bad_alloc.
  PackedMatrix(BlockFormat format, const void* blocks, size_t n_rows, size_t n_columns);

  size_t n_groups() const { return n_groups_; }
  size_t n_blocks() const { return n_blocks_; }  // of one row
  size_t bytes() const { return n_groups_ * group_bytes_; }

  // Output [i * n_outputs + j] for the `n_rows` rows i of `activations` (n_blocks() blocks each) and the weight rows j
  // of the groups `from` up to, not including, `to`. `n_outputs` is the matrix' number of rows.
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

// Turns `n_blocks` times 32 values into blocks.
void quantize(const float* values, size_t n_blocks, ActivationBlock* blocks);

}  // namespace corosrv
