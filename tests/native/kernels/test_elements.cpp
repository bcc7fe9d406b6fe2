#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/elements.h"

namespace corosrv {
namespace {

using Values = std::vector<float>;

std::vector<const ElementKernels*> all_kernels() {
  std::vector<const ElementKernels*> all;
  for (const ElementKernels* kernels : {avx2_elements(), avx512_elements()}) {
    if (kernels != nullptr) all.push_back(kernels);
  }
  return all;
}

Values random_values(size_t n, unsigned seed, float width = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, width);
  Values values(n);
  for (float& value : values) value = normal(random);
  return values;
}

bool is_near(float value, double expected) { return std::fabs(value - expected) <= 3e-6 * (1 + std::fabs(expected)); }

TEST("sums and products are those of each number") {
  const Values a = random_values(48, 1), b = random_values(48, 2);
  for (const ElementKernels* kernels : all_kernels()) {
    Values sums(48), products = a, scaled(48);
    kernels->add(a.data(), b.data(), 48, sums.data());
    kernels->multiply(products.data(), b.data(), 48, products.data());
    kernels->scale(a.data(), 48, -0.3f, scaled.data());
    for (size_t i = 0; i < 48; ++i) {
      CHECK_EQ(sums[i], a[i] + b[i]);
      CHECK_EQ(products[i], a[i] * b[i]);
      CHECK_EQ(scaled[i], a[i] * -0.3f);
    }
  }
}

TEST("a norm divides by the root of the mean square") {
  for (const size_t n : {size_t{16}, size_t{576}, size_t{4096}}) {
    const Values row = random_values(n, 3, 5);
    double sum = 0;
    for (const float value : row) sum += double{value} * value;
    for (const ElementKernels* kernels : all_kernels()) {
      Values normal(n);
      kernels->normalize(row.data(), n, 0.25f, normal.data());
      for (size_t i = 0; i < n; ++i) CHECK(is_near(normal[i], row[i] / std::sqrt(sum / static_cast<double>(n) + 0.25)));
    }
  }
}

TEST("gates are their numbers times the logistic function, or their GELU, however large they are") {
  Values gates = random_values(64, 4, 6);
  gates[0] = 90, gates[1] = -90, gates[2] = 0, gates[3] = 1e12f, gates[4] = -1e12f;
  const Values values = random_values(64, 5, 6);
  for (const ElementKernels* kernels : all_kernels()) {
    Values gated(64), by_gelu(64), within_limits(64);
    kernels->gate(gates.data(), values.data(), 64, gated.data());
    kernels->gate_by_gelu(gates.data(), values.data(), 64, by_gelu.data());
    kernels->gate_within_limits(gates.data(), values.data(), 64, within_limits.data());
    for (size_t i = 0; i < 64; ++i) {
      const double gate = gates[i], value = values[i];
      const double cubic = std::sqrt(2 / std::acos(-1.0)) * (gate + 0.044715 * gate * gate * gate);
      CHECK(is_near(gated[i], gate / (1 + std::exp(-gate)) * value));
      CHECK(is_near(by_gelu[i], gate / 2 * (1 + std::tanh(cubic)) * value));
      const double least = std::min(gate, 7.0), middle = std::max(-7.0, std::min(value, 7.0));
      CHECK(is_near(within_limits[i], least / (1 + std::exp(-1.702 * least)) * (middle + 1)));
    }
  }
}

TEST("gates of NaN, and of values that are NaN, are NaN") {
  const Values numbers(16, 1.0f), nans(16, NAN);
  for (const ElementKernels* kernels : all_kernels()) {
    for (const auto gate : {kernels->gate, kernels->gate_by_gelu, kernels->gate_within_limits}) {
      Values of_gates(16), of_values(16);
      gate(nans.data(), numbers.data(), 16, of_gates.data());
      gate(numbers.data(), nans.data(), 16, of_values.data());
      for (size_t i = 0; i < 16; ++i) CHECK(std::isnan(of_gates[i]) && std::isnan(of_values[i]));
    }
  }
}

TEST("pairs are rotated in place, whether they are neighbours or half of the row apart") {
  constexpr size_t kNumbers = 64;
  const Values row = random_values(kNumbers, 6);
  for (const ElementKernels* kernels : all_kernels()) {
    for (const bool are_neighbours : {true, false}) {
      Values cosines(kNumbers), sines(kNumbers), rotated = row;
      for (size_t pair = 0; pair < kNumbers / 2; ++pair) {
        const size_t first = are_neighbours ? 2 * pair : pair, second = first + (are_neighbours ? 1 : kNumbers / 2);
        cosines[first] = cosines[second] = std::cos(static_cast<float>(pair));
        sines[second] = std::sin(static_cast<float>(pair));
        sines[first] = -sines[second];
      }
      const auto rotate = are_neighbours ? kernels->rotate_neighbours : kernels->rotate_halves;
      rotate(rotated.data(), cosines.data(), sines.data(), kNumbers, rotated.data());
      for (size_t pair = 0; pair < kNumbers / 2; ++pair) {
        const size_t first = are_neighbours ? 2 * pair : pair, second = first + (are_neighbours ? 1 : kNumbers / 2);
        const double cosine = cosines[first], sine = sines[second];
        CHECK(is_near(rotated[first], row[first] * cosine - row[second] * sine));
        CHECK(is_near(rotated[second], row[first] * sine + row[second] * cosine));
      }
    }
  }
}

TEST("numbers are rounded to the nearest 16-bit float, ties to the even one") {
  Values row(16, 1.0f);
  row[1] = 1.0f + 1.0f / 2048, row[2] = 1.0f + 3.0f / 2048, row[3] = -2.0f, row[4] = 1e6f, row[5] = 0.0f;
  for (const ElementKernels* kernels : all_kernels()) {
    uint16_t halves[16];
    kernels->round_to_halves(row.data(), 16, halves);
    CHECK_EQ(halves[0], 0x3c00);
    CHECK_EQ(halves[1], 0x3c00);
    CHECK_EQ(halves[2], 0x3c02);
    CHECK_EQ(halves[3], 0xc000);
    CHECK_EQ(halves[4], 0x7c00);
    CHECK_EQ(halves[5], 0);
  }
}

}  // namespace
}  // namespace corosrv
