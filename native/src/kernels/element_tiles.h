// The one body of all routines between products, for elements_avx2.cpp and elements_avx512.cpp alone.
//
// Whoever includes it has included avx2.h or avx512.h.
#pragma once

#include <cmath>

#include "kernels/elements.h"
#include "kernels/exponential.h"

namespace corosrv {

namespace {

static_assert(kElementStep % kLanes == 0);

COROSRV_KERNEL void add_rows(const float* a, const float* b, size_t n, float* to) {
  for (size_t i = 0; i < n; i += kLanes) store(to + i, add(load_floats(a + i), load_floats(b + i)));
}

COROSRV_KERNEL void multiply_rows(const float* a, const float* b, size_t n, float* to) {
  for (size_t i = 0; i < n; i += kLanes) store(to + i, mul(load_floats(a + i), load_floats(b + i)));
}

COROSRV_KERNEL void scale_row(const float* row, size_t n, float factor, float* to) {
  const Floats factors = floats_of(factor);
  for (size_t i = 0; i < n; i += kLanes) store(to + i, mul(load_floats(row + i), factors));
}

COROSRV_KERNEL void normalize(const float* row, size_t n, float epsilon, float* to) {
  constexpr size_t kChains = kElementStep / kLanes;
  Floats sums[kChains];
  for (Floats& sum : sums) sum = floats_of(0.0f);
  for (size_t i = 0; i < n; i += kElementStep) {
#pragma GCC unroll 2
    for (size_t c = 0; c < kChains; ++c) {
      const Floats value = load_floats(row + i + c * kLanes);
      sums[c] = multiply_add(value, value, sums[c]);
    }
  }
  for (size_t c = 1; c < kChains; ++c) sums[0] = add(sums[0], sums[c]);
  scale_row(row, n, 1.0f / std::sqrt(sum_of(sums[0]) / static_cast<float>(n) + epsilon), to);
}

// For numbers below zero it is e^x / (1 + e^x), for others 1 / (1 + e^-x): no power is positive.
COROSRV_KERNEL inline Floats logistic(Floats x) {
  const Floats one = floats_of(1.0f), power = exponential(mul(absolute(x), floats_of(-1.0f)));
  return divide(by_sign(x, power, one), add(one, power));
}

COROSRV_KERNEL void gate(const float* gates, const float* values, size_t n, float* to) {
  for (size_t i = 0; i < n; i += kLanes) {
    const Floats g = load_floats(gates + i);
    store(to + i, mul(mul(g, logistic(g)), load_floats(values + i)));
  }
}

// Half of 1 + tanh(y) is the logistic function of 2 y.
COROSRV_KERNEL void gate_by_gelu(const float* gates, const float* values, size_t n, float* to) {
  for (size_t i = 0; i < n; i += kLanes) {
    const Floats g = load_floats(gates + i);
    const Floats widened = multiply_add(mul(g, g), floats_of(0.044715f), floats_of(1.0f));
    const Floats share = logistic(mul(mul(g, widened), floats_of(2 * 0.79788456f)));  // the root of 2 / pi
    store(to + i, mul(mul(g, share), load_floats(values + i)));
  }
}

COROSRV_KERNEL void gate_within_limits(const float* gates, const float* values, size_t n, float* to) {
  const Floats most = floats_of(kGateLimit), least = floats_of(-kGateLimit), one = floats_of(1.0f);
  for (size_t i = 0; i < n; i += kLanes) {
    const Floats g = minimum(most, load_floats(gates + i));
    const Floats value = maximum(least, minimum(most, load_floats(values + i)));
    store(to + i, mul(mul(g, logistic(mul(g, floats_of(kGateSteepness)))), add(value, one)));
  }
}

COROSRV_KERNEL void rotate_neighbours(const float* row, const float* cosines, const float* sines, size_t n, float* to) {
  for (size_t i = 0; i < n; i += kLanes) {
    const Floats numbers = load_floats(row + i);
    const Floats crossed = mul(swap_pairs(numbers), load_floats(sines + i));
    store(to + i, multiply_add(numbers, load_floats(cosines + i), crossed));
  }
}

COROSRV_KERNEL void rotate_halves(const float* row, const float* cosines, const float* sines, size_t n, float* to) {
  const size_t half = n / 2;
  for (size_t i = 0; i < half; i += kLanes) {
    const Floats first = load_floats(row + i), second = load_floats(row + half + i);
    const Floats from_second = mul(second, load_floats(sines + i));
    const Floats from_first = mul(first, load_floats(sines + half + i));
    store(to + i, multiply_add(first, load_floats(cosines + i), from_second));
    store(to + half + i, multiply_add(second, load_floats(cosines + half + i), from_first));
  }
}

COROSRV_KERNEL void round_to_halves(const float* row, size_t n, uint16_t* to) {
  for (size_t i = 0; i < n; i += kLanes) store_halves(to + i, load_floats(row + i));
}

constexpr ElementKernels kElements{&add_rows,      &multiply_rows,  &scale_row,          &normalize,
                                   &gate,          &gate_by_gelu,   &gate_within_limits, &rotate_neighbours,
                                   &rotate_halves, &round_to_halves};

}  // namespace

}  // namespace corosrv
