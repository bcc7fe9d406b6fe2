#include "kernels/attention.h"
#include "kernels/instruction_sets.h"

#if COROSRV_HAS_KERNELS

#define COROSRV_KERNEL COROSRV_AVX2
#include "kernels/avx2.h"

namespace corosrv {

namespace {

constexpr size_t kStripe = 2, kSteps = 2;  // with four heads, eight sums in sixteen registers

constexpr uint16_t kHiddenHalf = 0xFC00;  // minus infinity

// Appends those of `n` cells from number `first` on that the mask shows, and their biases; returns how many they are.
COROSRV_KERNEL inline size_t collect(const uint16_t* mask, size_t n, int32_t first, int32_t* cells, float* biases) {
  size_t n_shown = 0;
  for (size_t i = 0; i < n; ++i) {
    cells[n_shown] = first + static_cast<int32_t>(i);
    biases[n_shown] = _cvtsh_ss(mask[i]);
    n_shown += mask[i] != kHiddenHalf;
  }
  return n_shown;
}

// Returns whether the mask hides all of 32 cells.
COROSRV_KERNEL inline bool hides_all(const uint16_t* mask) {
  const __m256i hidden = _mm256_set1_epi16(static_cast<int16_t>(kHiddenHalf));
  const auto* from = reinterpret_cast<const __m256i*>(mask);
  const __m256i first = _mm256_cmpeq_epi16(_mm256_loadu_si256(from), hidden);
  const __m256i second = _mm256_cmpeq_epi16(_mm256_loadu_si256(from + 1), hidden);
  return _mm256_movemask_epi8(_mm256_and_si256(first, second)) == -1;
}

// Writes the sum of the lanes of each register.
COROSRV_KERNEL inline void store_sums(float* to, const Floats (&sums)[kStripe]) {
  const __m256 pairs = _mm256_hadd_ps(sums[0], sums[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
  _mm_storel_pi(reinterpret_cast<__m64*>(to), _mm_hadd_ps(four, four));
}

// Returns the first `n` lanes of `a`, and the others of `b`.
COROSRV_KERNEL inline Floats first_of(size_t n, Floats a, Floats b) {
  if (n >= kLanes) return a;
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i is_first = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), lanes);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(is_first));
}

}  // namespace

}  // namespace corosrv

#include "kernels/attention_tiles.h"

namespace corosrv {

Attend avx2_attention() { return has_avx2() ? &attend : nullptr; }

}  // namespace corosrv

#else

namespace corosrv {

Attend avx2_attention() { return nullptr; }

}  // namespace corosrv

#endif
