#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/attention.h"

namespace corosrv {
namespace {

constexpr uint16_t kHidden = 0xfc00;  // minus infinity
constexpr uint16_t kNan = 0x7e00;

using Values = std::vector<float>;

double worth(uint16_t half) {
  const double value = std::ldexp(1 + (half & 1023) / 1024.0, (half >> 10 & 31) - 15);
  return half == 0 ? 0 : half >> 15 ? -value : value;
}

// A cache with its queries and its mask, padded between heads and cells as those of libllama are.
struct Scene {
  Scene(size_t heads, size_t size, size_t cells, unsigned seed)
      : n_heads(heads), head_size(size), mask(cells), random(seed) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < heads * query_stride(); ++i) queries.push_back(normal(random));
    for (std::vector<uint16_t>* halves : {&keys, &values}) {
      for (size_t i = 0; i < cells * cell_stride(); ++i) halves->push_back(random_half());
    }
  }

  size_t query_stride() const { return head_size + 5; }
  size_t cell_stride() const { return head_size + 3; }
  size_t n_cells() const { return mask.size(); }

  // Between 1/8 and 2, of either sign.
  uint16_t random_half() {
    return static_cast<uint16_t>((random() % 2) << 15 | (12 + random() % 4) << 10 | random() % 1024);
  }

  // Hides a share of the cells and gives some of the others a bias.
  void hide(double share) {
    for (uint16_t& half : mask) {
      const double drawn = static_cast<double>(random() % 1000) / 1000;
      half = drawn < share ? kHidden : random() % 2 == 0 ? random_half() : uint16_t{0};
    }
  }

  // The same with fewer than `most` cells in between that nobody is shown, full of what is not a number.
  Scene with_hidden_cells(size_t most = 4) const {
    Scene scene = *this;
    scene.mask.clear(), scene.keys.clear(), scene.values.clear();
    for (size_t i = 0; i < n_cells(); ++i) {
      for (size_t n = scene.random() % most; n > 0; --n) scene.append(*this, i, kHidden);
      scene.append(*this, i, mask[i]);
    }
    return scene;
  }

  void append(const Scene& from, size_t cell, uint16_t half) {
    mask.push_back(half);
    for (const auto& [to, source] : {std::pair{&keys, &from.keys}, std::pair{&values, &from.values}}) {
      for (size_t i = 0; i < cell_stride(); ++i) {
        to->push_back(half == kHidden ? kNan : (*source)[cell * cell_stride() + i]);
      }
    }
  }

  Values attend(Attend with) const {
    Values output(n_heads * head_size, NAN);
    with({head_size, n_heads, queries.data(), query_stride() * 4, n_cells(), mask.data(),
          reinterpret_cast<const uint8_t*>(keys.data()), cell_stride() * 2,
          reinterpret_cast<const uint8_t*>(values.data()), cell_stride() * 2, kScale, output.data(),
          sinks.empty() ? nullptr : sinks.data()});
    return output;
  }

  // The plain way.
  Values expected() const {
    Values output;
    for (size_t h = 0; h < n_heads; ++h) {
      double sum = sinks.empty() ? 0 : std::exp(sinks[h]);
      std::vector<double> sums(head_size, 0.0);
      for (size_t cell = 0; cell < n_cells(); ++cell) {
        if (mask[cell] == kHidden) continue;
        double score = 0;
        for (size_t i = 0; i < head_size; ++i)
          score += queries[h * query_stride() + i] * worth(keys[cell * cell_stride() + i]);
        const double weight = std::exp(score * kScale + worth(mask[cell]));
        sum += weight;
        for (size_t i = 0; i < head_size; ++i) sums[i] += weight * worth(values[cell * cell_stride() + i]);
      }
      for (const double value : sums) output.push_back(static_cast<float>(sum == 0 ? 0 : value / sum));
    }
    return output;
  }

  static constexpr float kScale = 0.2f;
  size_t n_heads;
  size_t head_size;
  std::vector<uint16_t> mask, keys, values;
  Values queries;
  Values sinks;  // empty: none
  std::mt19937 random;
};

bool are_same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Calls `check` with the attention of each instruction set of this processor.
template <typename Check>
void with_each(const Check& check) {
  for (const Attend attend : {avx2_attention(), avx512_attention()}) {
    if (attend != nullptr) check(attend);
  }
}

TEST("attention agrees with plain arithmetic on random shapes") {
  with_each([](Attend attend) {
    std::mt19937 random(1);
    for (unsigned round = 0; round < 60; ++round) {
      Scene scene(1 + random() % 9, kHeadStep * (1 + random() % 9), 1 + random() % 400, round);
      scene.hide(static_cast<double>(round % 3) / 2.5);
      for (size_t h = 0; h < scene.n_heads && round % 2 == 0; ++h) {
        scene.sinks.push_back(static_cast<float>(static_cast<int>(random() % 9) - 4));
      }
      const Values found = scene.attend(attend), expected = scene.expected();

      float most = 0;
      for (size_t i = 0; i < found.size(); ++i) most = std::fmax(most, std::fabs(found[i] - expected[i]));
      CHECK(most < 1e-5f);
      CHECK(std::none_of(found.begin(), found.end(), [](float value) { return std::isnan(value); }));
    }
  });
}

TEST("scores far apart neither overflow nor vanish") {
  with_each([](Attend attend) {
    Scene scene(3, 64, 300, 2);
    for (float& value : scene.queries) value *= 40;
    const Values found = scene.attend(attend), expected = scene.expected();

    for (size_t i = 0; i < found.size(); ++i) CHECK(std::fabs(found[i] - expected[i]) < 1e-3f);
  });
}

TEST("hidden cells are not read and change no bit") {
  with_each([](Attend attend) {
    for (const size_t n_cells : {1u, 15u, 16u, 127u, 128u, 129u, 143u, 300u}) {
      const Scene scene(3, 64, n_cells, 3);

      CHECK(are_same_bits(scene.with_hidden_cells().attend(attend), scene.attend(attend)));
      CHECK(are_same_bits(scene.with_hidden_cells(200).attend(attend), scene.attend(attend)));
    }
  });
}

TEST("who is shown nothing gets zeros") {
  with_each([](Attend attend) {
    Scene scene(5, 32, 40, 4);
    scene.hide(1.0);

    CHECK(scene.attend(attend) == Values(5 * 32, 0.0f));
  });
}

TEST("what is not a number is not hidden from whoever looks at it") {
  with_each([](Attend attend) {
    Scene scene(2, 32, 40, 5);
    scene.keys[17 * scene.cell_stride()] = kNan;
    const Values found = scene.attend(attend);

    CHECK(std::all_of(found.begin(), found.end(), [](float value) { return std::isnan(value); }));
  });
}

}  // namespace
}  // namespace corosrv
