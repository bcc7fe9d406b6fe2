#include "kernels/instruction_sets.h"
#include "kernels/packed_matrix.h"

#if COROSRV_HAS_KERNELS

#define COROSRV_KERNEL COROSRV_AVX512_VNNI
#include "kernels/avx512.h"

namespace corosrv {

namespace {

constexpr bool kSignedQuants = false;

// Adds to `sum` the products of four weights with four activations in each lane, for the registers [kFrom, kTo).
template <unsigned, size_t kFrom, size_t kTo>
COROSRV_KERNEL inline Ints dot(const Ints (&weights)[8], const int8_t* quants, Ints sum) {
#pragma GCC unroll 8
  for (size_t i = kFrom; i < kTo; ++i) sum = _mm512_dpbusd_epi32(sum, weights[i], broadcast(quants + 4 * i));
  return sum;
}

}  // namespace

}  // namespace corosrv

#include "kernels/product_tiles.h"

namespace corosrv {

namespace {

// Returns the largest of the magnitudes, NaN where one is: compared as whole numbers, it is the largest.
COROSRV_KERNEL inline float largest_magnitude(__m512 a, __m512 b) {
  const __m512i bits = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(bits))));
}

COROSRV_KERNEL void quantize(const float* values, size_t n_blocks, ActivationBlock* blocks) {
  for (size_t b = 0; b < n_blocks; ++b) {
    const __m512 low = _mm512_loadu_ps(values + b * kBlockValues);
    const __m512 high = _mm512_loadu_ps(values + b * kBlockValues + 16);
    const float largest = largest_magnitude(low, high);
    const float scale = largest / 127.0f;
    const __m512 inverse = _mm512_set1_ps(largest != 0.0f ? 127.0f / largest : 0.0f);
    const __m512i low_quants = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
    const __m512i high_quants = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));

    ActivationBlock& block = blocks[b];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quants), _mm512_cvtsepi32_epi8(low_quants));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quants + 16), _mm512_cvtsepi32_epi8(high_quants));
    block.half_sums[0] = sum_of(low_quants);
    block.half_sums[1] = sum_of(high_quants);
    block.scale = round_to_half(scale);
    block.scaled_sum = round_to_half(scale * static_cast<float>(block.half_sums[0] + block.half_sums[1]));
  }
}

}  // namespace

const ProductKernels* avx512_products() {
  static constexpr ProductKernels kKernels{"AVX512-VNNI", &quantize, all_tiles(), all_float_tiles()};
  return has_avx512() && __builtin_cpu_supports("avx512vnni") ? &kKernels : nullptr;
}

}  // namespace corosrv

#else

namespace corosrv {

const ProductKernels* avx512_products() { return nullptr; }

}  // namespace corosrv

#endif
