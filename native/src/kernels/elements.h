// What a model computes between its matrix products, number by number or row by row.
//
// Pure arithmetic: uses neither ggml nor graphs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corosrv {

// All counts of numbers are multiples of this.
constexpr size_t kElementStep = 16;

// Of gate_within_limits().
constexpr float kGateSteepness = 1.702f, kGateLimit = 7.0f;

// The routines of one instruction set. Each row gives the same, whatever its neighbours (invariant I9). `to` may be one
// of the inputs, or apart from them.
struct ElementKernels {
  void (*add)(const float* a, const float* b, size_t n, float* to);
  void (*multiply)(const float* a, const float* b, size_t n, float* to);
  void (*scale)(const float* row, size_t n, float factor, float* to);
  // Divides a row by the root of the mean of its squares, to which `epsilon` is added.
  void (*normalize)(const float* row, size_t n, float epsilon, float* to);
  // Multiplies with gates times their logistic function, SwiGLU, or with their GELU by tanh, GEGLU.
  void (*gate)(const float* gates, const float* values, size_t n, float* to);
  void (*gate_by_gelu)(const float* gates, const float* values, size_t n, float* to);
  // As gpt-oss does: SwiGLU of steeper gates up to 7, with values between -7 and 7, to which one is added.
  void (*gate_within_limits)(const float* gates, const float* values, size_t n, float* to);
  // Rotates pairs of numbers, which are neighbours or half of the row apart; then n is a multiple of two steps. Both
  // numbers of a pair have the same cosine, and the first of them the negative sine.
  void (*rotate_neighbours)(const float* row, const float* cosines, const float* sines, size_t n, float* to);
  void (*rotate_halves)(const float* row, const float* cosines, const float* sines, size_t n, float* to);
  // Rounds to 16-bit floats.
  void (*round_to_halves)(const float* row, size_t n, uint16_t* to);
};

// Each returns null where this processor lacks the instructions.
const ElementKernels* avx2_elements();
const ElementKernels* avx512_elements();

// Returns the fastest of this processor; null where it has none.
inline const ElementKernels* best_elements() {
  const ElementKernels* const wide = avx512_elements();
  return wide != nullptr ? wide : avx2_elements();
}

}  // namespace corosrv
