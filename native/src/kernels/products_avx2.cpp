#include "kernels/instruction_sets.h"
#include "kernels/packed_matrix.h"

#if COROSRV_HAS_KERNELS

#define COROSRV_KERNEL COROSRV_AVX2
#include "kernels/avx2.h"

namespace corosrv {

namespace {

constexpr bool kSignedQuants = true;

// Adds to `sum` the products of four weights with four activations in each lane, for the registers [kFrom, kTo).
template <unsigned kMost, size_t kFrom, size_t kTo>
COROSRV_KERNEL inline Ints dot(const Ints (&weights)[8], const int8_t* quants, Ints sum) {
  const Ints ones = _mm256_set1_epi16(1);
  if constexpr (kMost > 127) {  // as signed bytes: the sign of a weight goes to its activation
#pragma GCC unroll 8
    for (size_t i = kFrom; i < kTo; ++i) {
      const Ints activations = _mm256_sign_epi8(broadcast(quants + 4 * i), weights[i]);
      const Ints pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights[i]), activations);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
  } else {
    // Pairs of products that 16 bits can sum up. The magnitude of an activation is at most 128.
    constexpr size_t kRun = 32767 / (2 * 128 * kMost);
#pragma GCC unroll 8
    for (size_t first = kFrom; first < kTo; first += kRun) {
      Ints pairs = _mm256_maddubs_epi16(weights[first], broadcast(quants + 4 * first));
      const size_t end = first + kRun < kTo ? first + kRun : kTo;
#pragma GCC unroll 8
      for (size_t i = first + 1; i < end; ++i) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weights[i], broadcast(quants + 4 * i)));
      }
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
  }
  return sum;
}

}  // namespace

}  // namespace corosrv

#include "kernels/product_tiles.h"

namespace corosrv {

namespace {

// Returns the largest of magnitudes, NaN where one is: compared as whole numbers, it is the largest.
COROSRV_KERNEL inline float largest_magnitude(__m256i bits) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1))));
}

COROSRV_KERNEL void quantize(const float* values, size_t n_blocks, ActivationBlock* blocks) {
  for (size_t b = 0; b < n_blocks; ++b, values += kBlockValues) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 parts[4];
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < 4; ++i) {
      parts[i] = _mm256_loadu_ps(values + 8 * i);
      most = _mm256_max_epi32(most, _mm256_castps_si256(_mm256_andnot_ps(sign, parts[i])));
    }
    const float largest = largest_magnitude(most), scale = largest / 127.0f;
    const __m256 inverse = _mm256_set1_ps(largest != 0.0f ? 127.0f / largest : 0.0f);
    __m256i quants[4];
    for (size_t i = 0; i < 4; ++i) quants[i] = _mm256_cvtps_epi32(_mm256_mul_ps(parts[i], inverse));

    ActivationBlock& block = blocks[b];
    const __m256i low = _mm256_packs_epi32(quants[0], quants[1]), high = _mm256_packs_epi32(quants[2], quants[3]);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block.quants),
                        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order));
    block.half_sums[0] = sum_of(_mm256_add_epi32(quants[0], quants[1]));
    block.half_sums[1] = sum_of(_mm256_add_epi32(quants[2], quants[3]));
    block.scale = round_to_half(scale);
    block.scaled_sum = round_to_half(scale * static_cast<float>(block.half_sums[0] + block.half_sums[1]));
  }
}

}  // namespace

const ProductKernels* avx2_products() {
  static constexpr ProductKernels kKernels{"AVX2", &quantize, all_tiles(), all_float_tiles()};
  return has_avx2() ? &kKernels : nullptr;
}

}  // namespace corosrv

#else

namespace corosrv {

const ProductKernels* avx2_products() { return nullptr; }

}  // namespace corosrv

#endif
