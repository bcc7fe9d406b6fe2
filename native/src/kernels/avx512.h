// Registers of sixteen numbers. Whoever includes it has defined COROSRV_KERNEL, the target attribute of its functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/instruction_sets.h"

namespace corosrv {

namespace {

using Ints = __m512i;
using Floats = __m512;
constexpr size_t kLanes = 16;

COROSRV_KERNEL inline Ints load(const uint8_t* from) { return _mm512_loadu_si512(from); }
COROSRV_KERNEL inline Ints bytes_of(uint8_t value) { return _mm512_set1_epi8(static_cast<char>(value)); }
COROSRV_KERNEL inline Ints ints_of(int32_t value) { return _mm512_set1_epi32(value); }
COROSRV_KERNEL inline Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
COROSRV_KERNEL inline Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
COROSRV_KERNEL inline Ints differing(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
template <int kBits>
COROSRV_KERNEL inline Ints shift_left(Ints a) {
  return _mm512_slli_epi16(a, kBits);
}
template <int kBits>
COROSRV_KERNEL inline Ints shift_right(Ints a) {
  return _mm512_srli_epi16(a, kBits);
}
COROSRV_KERNEL inline Ints load_table(const uint8_t* from) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
COROSRV_KERNEL inline Ints look_up(Ints table, Ints indices) { return _mm512_shuffle_epi8(table, indices); }

COROSRV_KERNEL inline Floats floats_of(float value) { return _mm512_set1_ps(value); }
COROSRV_KERNEL inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
COROSRV_KERNEL inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
COROSRV_KERNEL inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
COROSRV_KERNEL inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
// The second where one is NaN.
COROSRV_KERNEL inline Floats minimum(Floats a, Floats b) { return _mm512_min_ps(a, b); }
// The second where one is NaN.
COROSRV_KERNEL inline Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
COROSRV_KERNEL inline Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
COROSRV_KERNEL inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
COROSRV_KERNEL inline float largest_of(Floats a) { return _mm512_reduce_max_ps(a); }
COROSRV_KERNEL inline float sum_of(Floats a) { return _mm512_reduce_add_ps(a); }
// Wraps, as what numbers become that are none: GCC's _mm512_reduce_add_epi32 adds as C++ does, where that is undefined.
COROSRV_KERNEL inline int32_t sum_of(Ints a) {
  const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

COROSRV_KERNEL inline Floats subtract_product(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
COROSRV_KERNEL inline Floats whole(Floats a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Multiplies by 2 to the power of n, a whole number.
COROSRV_KERNEL inline Floats times_power(Floats a, Floats n) { return _mm512_scalef_ps(a, n); }
COROSRV_KERNEL inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
COROSRV_KERNEL inline Floats absolute(Floats a) { return _mm512_abs_ps(a); }
// Returns the lanes of `a` where `sign` is negative, else those of `b`.
COROSRV_KERNEL inline Floats by_sign(Floats sign, Floats a, Floats b) {
  return _mm512_mask_mov_ps(b, _mm512_movepi32_mask(_mm512_castps_si512(sign)), a);
}
// Swaps the numbers of each pair of lanes.
COROSRV_KERNEL inline Floats swap_pairs(Floats a) { return _mm512_permute_ps(a, 0xb1); }
COROSRV_KERNEL inline void store_halves(uint16_t* to, Floats a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

COROSRV_KERNEL inline Floats load_halves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
// Sixteen pairs of bfloats, which are the upper halves of floats: the first of each pair, and the second.
COROSRV_KERNEL inline void load_bfloat_pairs(const uint8_t* from, Floats& first, Floats& second) {
  const Ints pairs = load(from);
  first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  second = _mm512_castsi512_ps(both(pairs, ints_of(-0x10000)));
}
COROSRV_KERNEL inline __m128i load_sixteen(const uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
COROSRV_KERNEL inline Ints widen_bytes(const uint8_t* from) { return _mm512_cvtepu8_epi32(load_sixteen(from)); }
COROSRV_KERNEL inline Floats load_signed_bytes(const uint8_t* from) {
  return to_floats(_mm512_cvtepi8_epi32(load_sixteen(from)));
}
// Half of 2 to the power of each byte less 127; nothing for the two smallest.
COROSRV_KERNEL inline Floats load_powers(const uint8_t* from) {
  const __m128i less_one = _mm_subs_epu8(load_sixteen(from), _mm_set1_epi8(1));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(less_one), 23));
}

// Returns four activations, repeated in each lane.
COROSRV_KERNEL inline Ints broadcast(const int8_t* quants) {
  int32_t four;
  std::memcpy(&four, quants, sizeof four);
  return ints_of(four);
}

}  // namespace

}  // namespace corosrv
