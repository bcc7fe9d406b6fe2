#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "kernels/kernel_test.h"
#include "kernels/packed_matrix.h"
#include "kernels/spin_barrier.h"

namespace corosrv {
namespace {

constexpr BlockFormat kFormats[] = {BlockFormat::kQ4_1, BlockFormat::kQ8_0};

using Blocks = std::vector<ActivationBlock>;
using Values = std::vector<float>;

// A 16-bit float and what it is worth.
struct Half {
  uint16_t bits;
  double value;
};

Half random_half(std::mt19937& random) {
  const unsigned sign = random() % 2, exponent = 8 + random() % 8, mantissa = random() % 1024;
  const double value = std::ldexp(1 + mantissa / 1024.0, static_cast<int>(exponent) - 15);
  return {static_cast<uint16_t>(sign << 15 | exponent << 10 | mantissa), sign == 0 ? value : -value};
}

// Whether eleven bits hold the digits.
bool is_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits % (1u << 13) == 0;
}

// A matrix in ggml's layout, and its parts in plain numbers.
struct Matrix {
  Matrix(BlockFormat chosen, size_t rows, size_t blocks, unsigned seed)
      : format(chosen), n_rows(rows), n_blocks(blocks) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < rows * blocks; ++i) append_block(random);
  }

  void append_block(std::mt19937& random) {
    const bool is_q4 = format == BlockFormat::kQ4_1;
    append_half(random_half(random), scales);
    if (is_q4) append_half(random_half(random), minima);
    for (size_t i = 0; i < (is_q4 ? 16 : 32); ++i) bytes.push_back(static_cast<uint8_t>(random()));
    for (size_t i = 0; i < kBlockValues; ++i) {
      const uint8_t* from = bytes.data() + bytes.size() - (is_q4 ? 16 : 32);
      quants.push_back(!is_q4 ? static_cast<int8_t>(from[i]) : i < 16 ? from[i] & 15 : from[i - 16] >> 4);
    }
  }

  void append_half(Half half, std::vector<double>& values) {
    bytes.push_back(static_cast<uint8_t>(half.bits));
    bytes.push_back(static_cast<uint8_t>(half.bits >> 8));
    values.push_back(half.value);
  }

  PackedMatrix packed() const { return {format, bytes.data(), n_rows, n_blocks * kBlockValues}; }

  BlockFormat format;
  size_t n_rows;
  size_t n_blocks;
  std::vector<uint8_t> bytes;
  std::vector<double> scales, minima;  // of each block
  std::vector<int> quants;
};

Values random_values(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Values values(size);
  for (float& value : values) value = normal(random);
  return values;
}

Blocks quantized(const Values& values) {
  Blocks blocks(values.size() / kBlockValues);
  quantize(values.data(), blocks.size(), blocks.data());
  return blocks;
}

Blocks random_rows(const Matrix& matrix, size_t n_rows) {
  return quantized(random_values(n_rows * matrix.n_blocks * kBlockValues, 3));
}

Values product(const PackedMatrix& packed, const ActivationBlock* rows, size_t n_rows) {
  Values output(n_rows * packed.n_groups() * PackedMatrix::kGroupRows, NAN);
  packed.multiply(rows, n_rows, 0, packed.n_groups(), output.data());
  return output;
}

// One output, the plain way; `size` becomes the sum of the magnitudes, which bounds the rounding.
double expected(const Matrix& matrix, size_t weight_row, const ActivationBlock* row, double& size) {
  double sum = size = 0;
  for (size_t b = 0; b < matrix.n_blocks; ++b) {
    const size_t block = weight_row * matrix.n_blocks + b;
    double dot = 0;
    for (size_t i = 0; i < kBlockValues; ++i) dot += matrix.quants[block * kBlockValues + i] * row[b].quants[i];
    double term = matrix.scales[block] * row[b].scale * dot;
    sum += term;
    size += std::fabs(term);
    if (matrix.format != BlockFormat::kQ4_1) continue;
    term = matrix.minima[block] * row[b].scaled_sum;
    sum += term;
    size += std::fabs(term);
  }
  return sum;
}

void check_product(const Matrix& matrix, size_t n_rows) {
  const Blocks rows = random_rows(matrix, n_rows);
  const Values output = product(matrix.packed(), rows.data(), n_rows);
  size_t n_wrong = 0;
  for (size_t i = 0; i < n_rows; ++i) {
    for (size_t j = 0; j < matrix.n_rows; ++j) {
      double size = 0;
      const double wanted = expected(matrix, j, &rows[i * matrix.n_blocks], size);
      n_wrong += !(std::fabs(output[i * matrix.n_rows + j] - wanted) <= 1e-6 * size);
    }
  }
  CHECK_EQ(n_wrong, 0u);
}

KERNEL_TEST(PackedMatrix::is_supported(), "products agree with plain arithmetic on random shapes") {
  std::mt19937 random(5);
  for (const BlockFormat format : kFormats) {
    for (unsigned round = 0; round < 25; ++round) {
      const Matrix matrix(format, (1 + random() % 4) * PackedMatrix::kGroupRows, 1 + random() % 9, round);
      check_product(matrix, 1 + random() % 20);
    }
  }
}

KERNEL_TEST(PackedMatrix::is_supported(), "products of the largest magnitudes do not overflow") {
  for (const BlockFormat format : kFormats) {
    Matrix matrix(format, PackedMatrix::kGroupRows, 1, 1);
    const size_t n_halves = format == BlockFormat::kQ4_1 ? 4 : 2, block = matrix.bytes.size() / matrix.n_rows;
    const uint8_t extreme = format == BlockFormat::kQ4_1 ? 0xff : 0x80;
    for (size_t r = 0; r < matrix.n_rows; ++r)
      std::fill_n(&matrix.bytes[r * block + n_halves], block - n_halves, extreme);
    std::fill(matrix.quants.begin(), matrix.quants.end(), format == BlockFormat::kQ4_1 ? 15 : -128);
    const Blocks rows = quantized(Values(kBlockValues, -1.0f));
    const Values output = product(matrix.packed(), rows.data(), 1);

    for (size_t j = 0; j < matrix.n_rows; ++j) {
      double size = 0;
      const double wanted = expected(matrix, j, rows.data(), size);
      CHECK(std::fabs(output[j] - wanted) <= 1e-6 * size);
    }
  }
}

KERNEL_TEST(PackedMatrix::is_supported(),
            "a row of activations gives the same bits alone and among any number of others") {
  for (const BlockFormat format : kFormats) {
    const Matrix matrix(format, 32, 7, 2);
    const PackedMatrix packed = matrix.packed();
    const Blocks rows = random_rows(matrix, 150);
    const Values together = product(packed, rows.data(), 150);

    for (size_t n_rows = 1; n_rows <= 17; ++n_rows) {
      const Values few = product(packed, rows.data(), n_rows);
      CHECK(std::memcmp(few.data(), together.data(), few.size() * sizeof(float)) == 0);
    }
    for (size_t row = 0; row < 150; ++row) {
      const Values alone = product(packed, &rows[row * matrix.n_blocks], 1);
      CHECK(std::memcmp(alone.data(), &together[row * matrix.n_rows], alone.size() * sizeof(float)) == 0);
    }
  }
}

KERNEL_TEST(PackedMatrix::is_supported(), "what is not a number stays in its own row") {
  for (const BlockFormat format : kFormats) {
    const Matrix matrix(format, 16, 3, 4);
    Values values = random_values(9 * 3 * kBlockValues, 5);
    const Values healthy = product(matrix.packed(), quantized(values).data(), 9);
    for (size_t i = 0; i < 3 * kBlockValues; ++i) values[4 * 3 * kBlockValues + i] = i % 2 == 0 ? NAN : INFINITY;
    const Values ill = product(matrix.packed(), quantized(values).data(), 9);

    for (size_t i = 0; i < ill.size(); ++i) CHECK(i / 16 == 4 ? !std::isfinite(ill[i]) : ill[i] == healthy[i]);
  }
}

KERNEL_TEST(PackedMatrix::is_supported(), "a product writes the outputs of its groups and no others") {
  const Matrix matrix(BlockFormat::kQ4_1, 64, 2, 6);
  const PackedMatrix packed = matrix.packed();
  const Blocks rows = random_rows(matrix, 3);
  const Values whole = product(packed, rows.data(), 3);
  Values part(whole.size(), -77.0f);

  packed.multiply(rows.data(), 3, 1, 3, part.data());

  for (size_t i = 0; i < part.size(); ++i) CHECK_EQ(part[i], i % 64 / 16 == 1 || i % 64 / 16 == 2 ? whole[i] : -77.0f);
}

KERNEL_TEST(PackedMatrix::is_supported(),
            "quantising keeps every value within half a step, and the sums are those of the quants") {
  const Values values = random_values(50 * kBlockValues, 8);
  const Blocks blocks = quantized(values);

  for (size_t b = 0; b < blocks.size(); ++b) {
    const ActivationBlock& block = blocks[b];
    float most = 0;
    int32_t sum = 0;
    for (size_t i = 0; i < kBlockValues; ++i) most = std::fmax(most, std::fabs(values[b * kBlockValues + i]));
    const float step = most / 127;
    for (size_t i = 0; i < kBlockValues; ++i) {
      sum += block.quants[i];
      CHECK(std::fabs(block.quants[i] * step - values[b * kBlockValues + i]) <= 0.5001f * step);
    }
    CHECK_EQ(block.sum, sum);
    CHECK(is_half(block.scale));
    CHECK(is_half(block.scaled_sum));
    CHECK(std::fabs(block.scale - step) <= step / 2048);
    CHECK(std::fabs(block.scaled_sum - step * static_cast<float>(sum)) <=
          std::fabs(step * static_cast<float>(sum)) / 2048);
  }
}

KERNEL_TEST(PackedMatrix::is_supported(), "zeros are quantised to zeros") {
  const Blocks blocks = quantized(Values(kBlockValues, 0.0f));

  CHECK_EQ(blocks[0].scale, 0.0f);
  CHECK_EQ(blocks[0].sum, 0);
  CHECK(std::all_of(blocks[0].quants, blocks[0].quants + kBlockValues, [](int8_t quant) { return quant == 0; }));
}

KERNEL_TEST(PackedMatrix::is_supported(), "threads that share the work get what one thread gets") {
  constexpr int kThreads = 4;
  const Matrix matrix(BlockFormat::kQ8_0, 80, 5, 9);
  const PackedMatrix packed = matrix.packed();
  const size_t n_blocks = 12 * matrix.n_blocks;
  SpinBarrier barrier;
  Blocks shared(n_blocks);

  for (unsigned round = 0; round < 50; ++round) {
    const Values values = random_values(n_blocks * kBlockValues, round);
    Values output(12 * matrix.n_rows, NAN);
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const size_t from = n_blocks * thread / kThreads, to = n_blocks * (thread + 1) / kThreads;
        quantize(&values[from * kBlockValues], to - from, &shared[from]);
        barrier.wait(kThreads);
        packed.multiply(shared.data(), 12, packed.n_groups() * thread / kThreads,
                        packed.n_groups() * (thread + 1) / kThreads, output.data());
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(output == product(packed, quantized(values).data(), 12));
  }
}

TEST("matrices of whole groups and blocks can be packed") {
  CHECK(PackedMatrix::fits(16, 32));
  CHECK(PackedMatrix::fits(49152, 576));
  CHECK(!PackedMatrix::fits(24, 32));
  CHECK(!PackedMatrix::fits(16, 48));
  CHECK(!PackedMatrix::fits(0, 32));
  CHECK(!PackedMatrix::fits(16, 0));
}

TEST("a packed matrix takes as many bytes as the original, up to a cache line for each group") {
  for (const BlockFormat format : kFormats) {
    const Matrix matrix(format, 48, 3, 1);
    const size_t bytes = matrix.packed().bytes();

    CHECK(bytes >= matrix.bytes.size());
    CHECK(bytes < matrix.bytes.size() + 3 * 64);
  }
}

}  // namespace
}  // namespace corosrv
