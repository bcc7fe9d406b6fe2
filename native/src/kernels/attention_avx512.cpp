#include "kernels/attention.h"
#include "kernels/instruction_sets.h"

#if COROSRV_HAS_KERNELS

#define COROSRV_KERNEL COROSRV_AVX512
#include "kernels/avx512.h"

namespace corosrv {

namespace {

constexpr size_t kStripe = 4, kSteps = 4;  // with four heads, sixteen sums in 32 registers

inline __mmask16 first_lanes(size_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

// Appends those of `n` cells from number `first` on that the mask shows, and their biases; returns how many they are.
COROSRV_KERNEL inline size_t collect(const uint16_t* mask, size_t n, int32_t first, int32_t* cells, float* biases) {
  const __mmask16 present = first_lanes(n);
  const __m512 bias = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(present, mask));
  const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
  const __mmask16 shown = _mm512_mask_cmp_ps_mask(present, bias, hidden, _CMP_NEQ_UQ);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
  _mm512_storeu_si512(cells, _mm512_maskz_compress_epi32(shown, numbers));
  _mm512_storeu_ps(biases, _mm512_maskz_compress_ps(shown, bias));
  return static_cast<size_t>(__builtin_popcount(shown));
}

// Returns whether the mask hides all of 32 cells.
COROSRV_KERNEL inline bool hides_all(const uint16_t* mask) {
  const __m512i hidden = _mm512_set1_epi16(static_cast<int16_t>(0xFC00));  // minus infinity
  return _mm512_cmpneq_epi16_mask(_mm512_loadu_si512(mask), hidden) == 0;
}

// Writes the sum of the lanes of each register.
COROSRV_KERNEL inline void store_sums(float* to, const Floats (&sums)[kStripe]) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(sums[0], sums[1]), _mm512_unpackhi_ps(sums[0], sums[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(sums[2], sums[3]), _mm512_unpackhi_ps(sums[2], sums[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// Returns the first `n` lanes of `a`, and the others of `b`.
COROSRV_KERNEL inline Floats first_of(size_t n, Floats a, Floats b) { return _mm512_mask_mov_ps(b, first_lanes(n), a); }

}  // namespace

}  // namespace corosrv

#include "kernels/attention_tiles.h"

namespace corosrv {

Attend avx512_attention() { return has_avx512() ? &attend : nullptr; }

}  // namespace corosrv

#else

namespace corosrv {

Attend avx512_attention() { return nullptr; }

}  // namespace corosrv

#endif
