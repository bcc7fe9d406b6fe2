// Multiplies a weight matrix of quants or 16-bit floats with many rows of activations, reading each weight once for all
// rows.
//
// Pure arithmetic: of ggml it uses the layouts of its block formats alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "kernels/block_formats.h"

namespace corosrv {

// 32 activations as 8-bit integers. They are rounded as ggml rounds them for most formats, so that products differ from
// ggml's only in the order of their float sums; for the formats named _K, ggml has one scale for 256 activations.
struct ActivationBlock {
  int8_t quants[kBlockValues];
  float scale;           // the value of quant 1
  float scaled_sum;      // the sum of all quants times the scale
  int32_t half_sums[2];  // the sums of the first 16 quants, and of the others
};

// 32 activations as bfloats, rounded to the nearest.
struct BfloatBlock {
  uint16_t values[kBlockValues];
};

// How far ahead of the weights in use those are that are fetched into the first-level cache. Processors do not fetch
// ahead beyond a page, so that without it a step's memory traffic and its arithmetic take turns.
constexpr size_t kBytesAhead = 4096;

enum class ActivationForm { kQuants, kBfloats, kFloats };  // ActivationBlock, BfloatBlock, float

// The routines of one instruction set. They give the same for each row of activations, whatever its neighbours.
struct ProductKernels {
  // Rows of activations that are multiplied together. More would leave no registers for a block of weights.
  static constexpr size_t kTileRows = 8;
  // Computes kGroupRows outputs for each of some rows of activations, which have n_blocks blocks each.
  using Tile = void (*)(const uint8_t* group, size_t n_blocks, const ActivationBlock* rows, float* output,
                        size_t n_outputs);
  using BfloatTile = void (*)(const uint8_t* group, size_t n_blocks, const BfloatBlock* rows, float* output,
                              size_t n_outputs);
  using FloatTile = void (*)(const uint8_t* group, size_t n_blocks, const float* const* rows, float* output,
                             size_t n_outputs);

  const char* name;
  // Quantises n_blocks times 32 numbers.
  void (*quantize)(const float* values, size_t n_blocks, ActivationBlock* blocks);
  // For each format those for 1 to kTileRows rows.
  std::array<std::array<Tile, kTileRows>, kQuantFormats> tiles;
  std::array<std::array<FloatTile, kTileRows>, kFloatFormats> float_tiles;
  // For BF16, of processors that multiply bfloats; null where they are multiplied as floats.
  void (*round)(const float* values, size_t n_blocks, BfloatBlock* blocks) = nullptr;
  std::array<BfloatTile, kTileRows> bfloat_tiles = {};
};

// Each returns null where this processor lacks the instructions.
const ProductKernels* avx2_products();
const ProductKernels* avx_vnni_products();
const ProductKernels* avx512_products();
const ProductKernels* avx512_bf16_products();

// Returns the fastest of this processor; null where it has none.
const ProductKernels* best_products();

// Returns whether libllama multiplies with the processor's tiles, which are faster.
bool has_amx();

// A weight matrix repacked so that one vector register holds the same columns of several rows. Immutable: any number of
// threads may call its methods.
//
// An output depends on its row of weights and its row of activations alone, not on the number of rows or on how threads
// share the work (invariant I9).
class PackedMatrix {
 public:
  // Rows of activations that are multiplied with all groups before the next rows follow, so that they stay in the
  // second-level cache.
  static constexpr size_t kMostRows = 8 * ProductKernels::kTileRows;

  // Returns whether a matrix of this shape can be packed.
  static bool fits(BlockFormat format, size_t n_rows, size_t n_columns);

  // Copies `blocks`, a matrix in ggml's layout whose shape fits; throws std::bad_alloc.
  PackedMatrix(const ProductKernels& kernels, BlockFormat format, const void* blocks, size_t n_rows, size_t n_columns);

  // Returns the form in which activations are multiplied with it.
  ActivationForm takes() const;
  size_t n_groups() const { return n_groups_; }
  size_t n_blocks() const { return n_blocks_; }  // of 32 numbers in one row
  size_t bytes() const { return n_groups_ * group_bytes_; }

  // Computes output j of each row i of `activations` (n_rows rows of n_blocks() blocks) for each weight row j in the
  // groups [from, to). `Activation`: an ActivationBlock, a BfloatBlock or a pointer to a row of floats, as the matrix
  // takes. `Output`: a float* to rows of as many outputs as the matrix has rows; or a float* const*, for each row the
  // place of the outputs of group `from`, behind which those of the next groups lie.
  template <typename Activation, typename Output>
  void multiply(const Activation* activations, size_t n_rows, size_t from, size_t to, Output output) const;

 private:
  struct Free {
    std::align_val_t alignment;
    void operator()(uint8_t* data) const { ::operator delete[](data, alignment); }
  };
  static std::unique_ptr<uint8_t[], Free> allocate(size_t bytes);

  // Returns the routines for the matrix's format and this form of activations.
  const auto& tiles_of(const ActivationBlock*) const { return kernels_.tiles[static_cast<size_t>(format_)]; }
  const auto& tiles_of(const BfloatBlock*) const { return kernels_.bfloat_tiles; }
  const auto& tiles_of(const float* const*) const {
    return kernels_.float_tiles[static_cast<size_t>(format_) - kQuantFormats];
  }

  const ProductKernels& kernels_;
  const BlockFormat format_;
  const size_t n_groups_;
  const size_t n_blocks_;
  const size_t group_bytes_;
  const std::unique_ptr<uint8_t[], Free> data_;
};

}  // namespace corosrv
