// Registers of eight numbers. Whoever includes it has defined COROSRV_KERNEL, the target attribute of its functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/instruction_sets.h"

namespace corosrv {

namespace {

using Ints = __m256i;
using Floats = __m256;
constexpr size_t kLanes = 8;

COROSRV_KERNEL inline Ints load(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
COROSRV_KERNEL inline Ints bytes_of(uint8_t value) { return _mm256_set1_epi8(static_cast<char>(value)); }
COROSRV_KERNEL inline Ints ints_of(int32_t value) { return _mm256_set1_epi32(value); }
COROSRV_KERNEL inline Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
COROSRV_KERNEL inline Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
COROSRV_KERNEL inline Ints differing(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
template <int kBits>
COROSRV_KERNEL inline Ints shift_left(Ints a) {
  return _mm256_slli_epi16(a, kBits);
}
template <int kBits>
COROSRV_KERNEL inline Ints shift_right(Ints a) {
  return _mm256_srli_epi16(a, kBits);
}
COROSRV_KERNEL inline Ints load_table(const uint8_t* from) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
COROSRV_KERNEL inline Ints look_up(Ints table, Ints indices) { return _mm256_shuffle_epi8(table, indices); }

COROSRV_KERNEL inline Floats floats_of(float value) { return _mm256_set1_ps(value); }
COROSRV_KERNEL inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
COROSRV_KERNEL inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
COROSRV_KERNEL inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
COROSRV_KERNEL inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
// The second where one is NaN.
COROSRV_KERNEL inline Floats minimum(Floats a, Floats b) { return _mm256_min_ps(a, b); }
// The second where one is NaN.
COROSRV_KERNEL inline Floats maximum(Floats a, Floats b) { return _mm256_max_ps(a, b); }
COROSRV_KERNEL inline Floats load_floats(const float* from) { return _mm256_loadu_ps(from); }
COROSRV_KERNEL inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
COROSRV_KERNEL inline float largest_of(Floats a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
COROSRV_KERNEL inline float sum_of(Floats a) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
COROSRV_KERNEL inline int32_t sum_of(Ints a) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

COROSRV_KERNEL inline Floats subtract_product(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
COROSRV_KERNEL inline Floats whole(Floats a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Multiplies by 2 to the power of n, a whole number from -126 on.
COROSRV_KERNEL inline Floats times_power(Floats a, Floats n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
COROSRV_KERNEL inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
COROSRV_KERNEL inline Floats absolute(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
// Returns the lanes of `a` where `sign` is negative, else those of `b`.
COROSRV_KERNEL inline Floats by_sign(Floats sign, Floats a, Floats b) { return _mm256_blendv_ps(b, a, sign); }
// Swaps the numbers of each pair of lanes.
COROSRV_KERNEL inline Floats swap_pairs(Floats a) { return _mm256_permute_ps(a, 0xb1); }
COROSRV_KERNEL inline void store_halves(uint16_t* to, Floats a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

COROSRV_KERNEL inline Floats load_halves(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
// Eight pairs of bfloats, which are the upper halves of floats: the first of each pair, and the second.
COROSRV_KERNEL inline void load_bfloat_pairs(const uint8_t* from, Floats& first, Floats& second) {
  const Ints pairs = load(from);
  first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  second = _mm256_castsi256_ps(both(pairs, ints_of(-0x10000)));
}
COROSRV_KERNEL inline __m128i load_eight(const uint8_t* bytes) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
}
COROSRV_KERNEL inline Ints widen_bytes(const uint8_t* from) { return _mm256_cvtepu8_epi32(load_eight(from)); }
COROSRV_KERNEL inline Floats load_signed_bytes(const uint8_t* from) {
  return to_floats(_mm256_cvtepi8_epi32(load_eight(from)));
}
// Half of 2 to the power of each byte less 127; nothing for the two smallest.
COROSRV_KERNEL inline Floats load_powers(const uint8_t* from) {
  const __m128i less_one = _mm_subs_epu8(load_eight(from), _mm_set1_epi8(1));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(less_one), 23));
}

// Returns four activations, repeated in each lane.
COROSRV_KERNEL inline Ints broadcast(const int8_t* quants) {
  int32_t four;
  std::memcpy(&four, quants, sizeof four);
  return ints_of(four);
}

}  // namespace

}  // namespace corosrv
