// e to a power. Whoever includes it has included avx2.h or avx512.h.
#pragma once

#include <initializer_list>

namespace corosrv {

namespace {

// Returns e to the power of x, for x up to 0, within a few units in the last place; below -87 that of -87, which is
// almost nothing. NaN stays NaN.
COROSRV_KERNEL inline Floats exponential(Floats x) {
  x = maximum(floats_of(-87.0f), x);  // the second if one is NaN
  const Floats n = whole(mul(x, floats_of(1.44269504f)));
  // ln 2 in two parts, of which the first has few bits: its product with n is exact.
  Floats r = subtract_product(n, floats_of(0.693359375f), x);
  r = subtract_product(n, floats_of(-2.12194440e-4f), r);
  // Seven terms of the series of e^r, for |r| up to half of ln 2.
  Floats sum = floats_of(1.0f / 720);
  for (const float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = multiply_add(sum, r, floats_of(term));
  }
  return times_power(sum, n);
}

}  // namespace

}  // namespace corosrv
