#include <cstring>
#include <utility>

#include "kernels/instruction_sets.h"
#include "kernels/packed_matrix.h"

#if COROSRV_HAS_AVX512_BF16

#define COROSRV_KERNEL COROSRV_AVX512_BF16
#include "kernels/avx512.h"

namespace corosrv {

namespace {

constexpr size_t kPairs = kBlockValues / 2;
constexpr size_t kPairBytes = 4 * kGroupRows;

COROSRV_KERNEL void round(const float* values, size_t n_blocks, BfloatBlock* blocks) {
  for (size_t b = 0; b < n_blocks; ++b) {
    const float* from = values + b * kBlockValues;
    const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + kLanes), _mm512_loadu_ps(from));
    std::memcpy(blocks[b].values, &rounded, sizeof rounded);
  }
}

// Computes kGroupRows outputs for each of kRows rows of activations. An output is summed by the same operations for any
// kRows: over the even pairs of columns and over the odd ones, side by side.
template <size_t kRows>
COROSRV_KERNEL void multiply(const uint8_t* group, size_t n_blocks, const BfloatBlock* rows, float* output,
                             size_t n_outputs) {
  Floats sums[kRows][2];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = floats_of(0.0f);
  for (size_t b = 0; b < n_blocks; ++b) {
    const uint8_t* block = group + b * kPairs * kPairBytes;
#pragma GCC unroll 16
    for (size_t pair = 0; pair < kPairs; ++pair) {
      __builtin_prefetch(block + pair * kPairBytes + kBytesAhead);
      const auto weights = reinterpret_cast<__m512bh>(load(block + pair * kPairBytes));
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        int32_t two;
        std::memcpy(&two, &rows[r * n_blocks + b].values[2 * pair], sizeof two);
        Floats& sum = sums[r][pair % 2];
        sum = _mm512_dpbf16_ps(sum, weights, reinterpret_cast<__m512bh>(ints_of(two)));
      }
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) store(output + r * n_outputs, add(sums[r][0], sums[r][1]));
}

template <size_t... kRows>
constexpr auto tiles_of(std::index_sequence<kRows...>) {
  return std::array<ProductKernels::BfloatTile, ProductKernels::kTileRows>{&multiply<kRows + 1>...};
}

}  // namespace

const ProductKernels* avx512_bf16_products() {
  const ProductKernels* const others = avx512_products();
  if (others == nullptr || !__builtin_cpu_supports("avx512bf16")) return nullptr;
  static const ProductKernels kKernels = [others] {
    ProductKernels kernels = *others;
    kernels.round = &round;
    kernels.bfloat_tiles = tiles_of(std::make_index_sequence<ProductKernels::kTileRows>());
    return kernels;
  }();
  return &kKernels;
}

}  // namespace corosrv

#else

namespace corosrv {

const ProductKernels* avx512_bf16_products() { return nullptr; }

}  // namespace corosrv

#endif
