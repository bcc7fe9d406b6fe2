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

constexpr BlockFormat kFormats[] = {BlockFormat::kQ4_0,  BlockFormat::kQ4_1,   BlockFormat::kQ5_0,  BlockFormat::kQ5_1,
                                    BlockFormat::kQ8_0,  BlockFormat::kIQ4_NL, BlockFormat::kMXFP4, BlockFormat::kQ2_K,
                                    BlockFormat::kQ3_K,  BlockFormat::kQ4_K,   BlockFormat::kQ5_K,  BlockFormat::kQ6_K,
                                    BlockFormat::kIQ4_XS};

constexpr BlockFormat kFloats[] = {BlockFormat::kF16, BlockFormat::kBF16};

using Blocks = std::vector<ActivationBlock>;
using Values = std::vector<float>;

// The instruction sets of this processor.
std::vector<const ProductKernels*> all_kernels() {
  std::vector<const ProductKernels*> found;
  for (const ProductKernels* kernels :
       {avx2_products(), avx_vnni_products(), avx512_products(), avx512_bf16_products()}) {
    if (kernels != nullptr) found.push_back(kernels);
  }
  return found;
}

// What a 16-bit float is worth.
double half(const uint8_t* bytes) {
  const unsigned bits = bytes[0] | bytes[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
  return bits >> 15 == 0 ? value : -value;
}

// Whether eleven bits hold the digits.
bool is_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits % (1u << 13) == 0;
}

// A number of a matrix: quant * scale + minimum.
struct Weight {
  double quant, scale, minimum;
};

constexpr double kIq4Values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr double kFloats4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// The six bits of a scale and of a minimum among the twelve bytes of Q4_K and Q5_K.
std::pair<int, int> k_scales(const uint8_t* bytes, size_t block) {
  if (block < 4) return {bytes[block] % 64, bytes[block + 4] % 64};
  return {bytes[block + 4] % 16 + bytes[block - 4] / 64 * 16, bytes[block + 4] / 16 + bytes[block] / 64 * 16};
}

// Reads number i of a block of ggml's as its documentation of the formats says.
Weight read(BlockFormat format, const uint8_t* block, size_t i) {
  const auto nibble = [i](const uint8_t* bytes) { return i < 16 ? bytes[i] % 16 : bytes[i - 16] / 16; };
  const auto bit = [i](const uint8_t* bytes) { return bytes[i / 8] >> i % 8 & 1; };
  switch (format) {
    case BlockFormat::kQ4_0:
      return {nibble(block + 2) - 8.0, half(block), 0};
    case BlockFormat::kQ4_1:
      return {1.0 * nibble(block + 4), half(block), half(block + 2)};
    case BlockFormat::kQ5_0:
      return {nibble(block + 6) + 16 * bit(block + 2) - 16.0, half(block), 0};
    case BlockFormat::kQ5_1:
      return {nibble(block + 8) + 16.0 * bit(block + 4), half(block), half(block + 2)};
    case BlockFormat::kQ8_0:
      return {1.0 * static_cast<int8_t>(block[2 + i]), half(block), 0};
    case BlockFormat::kIQ4_NL:
      return {kIq4Values[nibble(block + 2)], half(block), 0};
    case BlockFormat::kMXFP4: {
      const int code = nibble(block + 1);
      return {code < 8 ? kFloats4[code] : -kFloats4[code - 8], std::ldexp(1.0, block[0] - 127), 0};
    }
    case BlockFormat::kQ2_K: {
      const int quant = block[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3, scales = block[i / 16];
      return {1.0 * quant, half(block + 80) * (scales % 16), -half(block + 82) * (scales / 16)};
    }
    case BlockFormat::kQ3_K: {
      const int low = block[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
      const int quant = low + (block[i % 32] >> i / 32 & 1 ? 0 : -4);
      const uint8_t* scales = block + 96;
      const size_t s = i / 16;
      const int four = s < 8 ? scales[s] % 16 : scales[s - 8] / 16, two = scales[8 + s % 4] >> s / 4 * 2 & 3;
      return {1.0 * quant, half(block + 108) * (four + 16 * two - 32), 0};
    }
    case BlockFormat::kIQ4_XS: {
      const size_t b = i / 32;
      const int four = b % 2 == 0 ? block[4 + b / 2] % 16 : block[4 + b / 2] / 16;
      const int two = (block[2] | block[3] << 8) >> 2 * b & 3;
      const uint8_t byte = block[8 + b * 16 + i % 16];
      return {kIq4Values[i % 32 < 16 ? byte % 16 : byte / 16], half(block) * (four + 16 * two - 32), 0};
    }
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K: {
      const bool is_q5 = format == BlockFormat::kQ5_K;
      const auto [scale, minimum] = k_scales(block + 4, i / 32);
      const uint8_t byte = block[(is_q5 ? 48 : 16) + i / 64 * 32 + i % 32];
      const int fifth = is_q5 ? block[16 + i % 32] >> i / 32 & 1 : 0;
      const int quant = (i / 32 % 2 == 0 ? byte % 16 : byte / 16) + 16 * fifth;
      return {1.0 * quant, half(block) * scale, -half(block + 2) * minimum};
    }
    case BlockFormat::kQ6_K: {
      const uint8_t byte = block[i / 128 * 64 + i % 64], upper = block[128 + i / 128 * 32 + i % 32];
      const int quant = (i % 128 < 64 ? byte % 16 : byte / 16) + 16 * (upper >> i % 128 / 32 * 2 & 3) - 32;
      return {1.0 * quant, half(block + 208) * static_cast<int8_t>(block[192 + i / 16]), 0};
    }
    case BlockFormat::kF16:
      return {half(block + 2 * i), 1, 0};
    case BlockFormat::kBF16: {
      const uint32_t bits = static_cast<uint32_t>(block[2 * i] | block[2 * i + 1] << 8) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return {value, 1, 0};
    }
  }
  return {};
}

// Where the 16-bit floats of a block lie; MXFP4 has an exponent in their place.
std::vector<size_t> halves_of(BlockFormat format) {
  if (format == BlockFormat::kQ2_K) return {80, 82};
  if (format == BlockFormat::kQ3_K) return {108};
  if (format == BlockFormat::kQ6_K) return {208};
  if (is_float(format)) return {};  // see Matrix
  if (layout_of(format).n_halves == 2) return {0, 2};
  return layout_of(format).n_halves == 1 ? std::vector<size_t>{0} : std::vector<size_t>{};
}

// A matrix in ggml's layout: random bytes, but for scales of a sensible size.
struct Matrix {
  // `blocks`: of 32 numbers in a row.
  Matrix(BlockFormat chosen, size_t rows, size_t blocks, unsigned seed)
      : format(chosen), n_rows(rows), n_blocks(blocks), bytes(rows * blocks / layout().n_blocks * layout().bytes) {
    std::mt19937 random(seed);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (size_t at = 0; at < bytes.size(); at += layout().bytes) {
      for (const size_t half : halves_of(format)) {
        bytes[at + half + 1] = static_cast<uint8_t>(random() % 2 << 7 | (8 + random() % 8) << 2 | random() % 4);
      }
      if (format == BlockFormat::kMXFP4) bytes[at] = static_cast<uint8_t>(120 + random() % 8);
    }
    // Upper bytes of numbers between a half and four, or so, with both signs.
    for (size_t at = 1; is_float(format) && at < bytes.size(); at += 2) {
      bytes[at] = static_cast<uint8_t>(random() % 2 << 7 | (format == BlockFormat::kF16 ? 0x38 : 0x3f) | random() % 4);
    }
  }

  PackedLayout layout() const { return layout_of(format); }
  PackedMatrix packed(const ProductKernels& kernels) const {
    return {kernels, format, bytes.data(), n_rows, n_blocks * kBlockValues};
  }

  // The number of a row in this place of its block of 32.
  Weight weight(size_t row, size_t block, size_t i) const {
    const size_t n_in_one = layout().n_blocks, whole = (row * n_blocks + block) / n_in_one;
    return read(format, &bytes[whole * layout().bytes], block % n_in_one * kBlockValues + i);
  }

  BlockFormat format;
  size_t n_rows;
  size_t n_blocks;
  std::vector<uint8_t> bytes;
};

Values random_values(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Values values(size);
  for (float& value : values) value = normal(random);
  return values;
}

Blocks quantized(const ProductKernels& kernels, const Values& values) {
  Blocks blocks(values.size() / kBlockValues);
  kernels.quantize(values.data(), blocks.size(), blocks.data());
  return blocks;
}

Blocks random_rows(const ProductKernels& kernels, const Matrix& matrix, size_t n_rows) {
  return quantized(kernels, random_values(n_rows * matrix.n_blocks * kBlockValues, 3));
}

Values product(const PackedMatrix& packed, const ActivationBlock* rows, size_t n_rows) {
  Values output(n_rows * packed.n_groups() * kGroupRows, NAN);
  packed.multiply(rows, n_rows, 0, packed.n_groups(), output.data());
  return output;
}

// The products of floats, of which each row lies somewhere.
// As threads do that share the groups: so many at a time.
Values product(const ProductKernels& kernels, const PackedMatrix& packed, const std::vector<const float*>& rows,
               size_t n_at_a_time = 1000) {
  Values output(rows.size() * packed.n_groups() * kGroupRows, NAN);
  std::vector<BfloatBlock> rounded(rows.size() * packed.n_blocks());
  if (packed.takes() == ActivationForm::kBfloats) {
    for (size_t i = 0; i < rows.size(); ++i) {
      kernels.round(rows[i], packed.n_blocks(), &rounded[i * packed.n_blocks()]);
    }
  }
  for (size_t from = 0; from < packed.n_groups(); from += n_at_a_time) {
    const size_t to = std::min(from + n_at_a_time, packed.n_groups());
    if (packed.takes() == ActivationForm::kFloats) {
      packed.multiply(rows.data(), rows.size(), from, to, output.data());
    } else {
      packed.multiply(rounded.data(), rows.size(), from, to, output.data());
    }
  }
  return output;
}

// A number with the eight bits of a bfloat, rounded to the nearest, halves to even.
float bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7fff + (bits >> 16 & 1);
  bits &= 0xffff0000;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::vector<const float*> rows_of(const Values& values, size_t n_columns) {
  std::vector<const float*> rows;
  for (size_t at = 0; at < values.size(); at += n_columns) rows.push_back(&values[at]);
  return rows;
}

// One output, the plain way; `size` becomes the sum of the magnitudes, which bounds the rounding.
double expected(const Matrix& matrix, size_t weight_row, const ActivationBlock* row, double& size) {
  double sum = size = 0;
  for (size_t b = 0; b < matrix.n_blocks; ++b) {
    for (size_t part = 0; part < kBlockValues; part += 16) {
      const double of_half = 1.0 * row[b].scale * row[b].half_sums[part / 16];
      const double of_all = part == 0 ? row[b].scaled_sum : 0;
      const double minimum =
          matrix.weight(weight_row, b, part).minimum * (has_half_scales(matrix.format) ? of_half : of_all);
      sum += minimum;
      size += std::fabs(minimum);
    }
    for (size_t i = 0; i < kBlockValues; ++i) {
      const Weight weight = matrix.weight(weight_row, b, i);
      const double term = weight.quant * weight.scale * row[b].scale * row[b].quants[i];
      sum += term;
      size += std::fabs(term);
    }
  }
  return sum;
}

void check_product(const Matrix& matrix, size_t n_rows) {
  for (const ProductKernels* kernels : all_kernels()) {
    const Blocks rows = random_rows(*kernels, matrix, n_rows);
    const Values output = product(matrix.packed(*kernels), rows.data(), n_rows);
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
}

// ThreadSanitizer makes arithmetic twenty times as slow, and finds nothing in that of a single thread.
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kShapes = 3;
#else
constexpr unsigned kShapes = 25;
#endif

TEST("products agree with plain arithmetic on random shapes") {
  std::mt19937 random(5);
  for (const BlockFormat format : kFormats) {
    const size_t n_blocks = layout_of(format).n_blocks;
    for (unsigned round = 0; round < kShapes; ++round) {
      const size_t row_blocks = n_blocks == 1 ? 1 + random() % 9 : n_blocks * (1 + random() % 2);
      check_product(Matrix(format, (1 + random() % 4) * kGroupRows, row_blocks, round), 1 + random() % 20);
    }
  }
}

TEST("products of floats agree with plain arithmetic on random shapes, wherever the rows lie") {
  std::mt19937 random(6);
  for (const BlockFormat format : kFloats) {
    for (unsigned round = 0; round < kShapes; ++round) {
      const Matrix matrix(format, (1 + random() % 4) * kGroupRows, 1 + random() % 9, round);
      const size_t n_columns = matrix.n_blocks * kBlockValues;
      const Values values = random_values((1 + random() % 20) * n_columns, round);
      std::vector<const float*> rows = rows_of(values, n_columns);
      std::shuffle(rows.begin(), rows.end(), random);
      for (const ProductKernels* kernels : all_kernels()) {
        const PackedMatrix packed = matrix.packed(*kernels);
        const bool is_rounded = packed.takes() == ActivationForm::kBfloats;
        const Values output = product(*kernels, packed, rows);
        size_t n_wrong = 0;
        for (size_t i = 0; i < output.size(); ++i) {
          double wanted = 0, size = 0;
          for (size_t column = 0; column < n_columns; ++column) {
            const double weight = matrix.weight(i % matrix.n_rows, column / kBlockValues, column % kBlockValues).quant;
            const float activation = rows[i / matrix.n_rows][column];
            const double term = weight * (is_rounded ? bfloat(activation) : activation);
            wanted += term;
            size += std::fabs(term);
          }
          n_wrong += !(std::fabs(output[i] - wanted) <= 1e-6 * size);
        }
        CHECK_EQ(n_wrong, 0u);
      }
    }
  }
}

TEST("a row of activations gives the same bits with floats alone and among any number of others") {
  for (const ProductKernels* kernels : all_kernels()) {
    for (const BlockFormat format : kFloats) {
      const PackedMatrix packed = Matrix(format, 80, 7, 2).packed(*kernels);
      const size_t n_columns = 7 * kBlockValues;
      Values values = random_values(150 * n_columns, 3);
      for (size_t i = 0; i < n_columns; ++i) values[40 * n_columns + i] = NAN;  // stays in its row
      const std::vector<const float*> rows = rows_of(values, n_columns);
      const Values together = product(*kernels, packed, rows);

      for (const size_t n_at_a_time : {1u, 3u}) {
        const Values apart = product(*kernels, packed, rows, n_at_a_time);
        CHECK(std::memcmp(apart.data(), together.data(), together.size() * sizeof(float)) == 0);
      }
      for (size_t row = 0; row < rows.size(); ++row) {
        CHECK_EQ(std::isnan(together[80 * row]), row == 40);
        for (const size_t n_rows : {1u, 2u, 3u, 7u, 8u, 9u}) {
          if (row + n_rows > rows.size()) continue;
          const auto first = rows.begin() + static_cast<std::ptrdiff_t>(row);
          const Values few = product(*kernels, packed, {first, first + static_cast<std::ptrdiff_t>(n_rows)});
          CHECK(std::memcmp(few.data(), &together[80 * row], few.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST("products of the largest magnitudes do not overflow") {
  for (const BlockFormat format : kFormats) {
    for (const uint8_t extreme : std::vector<uint8_t>{0x00, 0x80, 0xff, 0x77, 0x88}) {
      Matrix matrix(format, kGroupRows, layout_of(format).n_blocks, 1);
      const Matrix scales = matrix;
      std::fill(matrix.bytes.begin(), matrix.bytes.end(), extreme);
      for (size_t at = 0; at < matrix.bytes.size(); at += matrix.layout().bytes) {
        for (const size_t half : halves_of(format)) std::copy_n(&scales.bytes[at + half], 2, &matrix.bytes[at + half]);
        if (format == BlockFormat::kMXFP4) matrix.bytes[at] = 127;
      }
      for (const ProductKernels* kernels : all_kernels()) {
        for (const float activation : {-1.0f, 1.0f}) {
          const Blocks rows = quantized(*kernels, Values(matrix.n_blocks * kBlockValues, activation));
          const Values output = product(matrix.packed(*kernels), rows.data(), 1);
          for (size_t j = 0; j < matrix.n_rows; ++j) {
            double size = 0;
            const double wanted = expected(matrix, j, rows.data(), size);
            CHECK(std::fabs(output[j] - wanted) <= 1e-6 * size);
          }
        }
      }
    }
  }
}

TEST("a row of activations gives the same bits alone and among any number of others") {
  for (const ProductKernels* kernels : all_kernels()) {
    for (const BlockFormat format : kFormats) {
      const Matrix matrix(format, 32, layout_of(format).n_blocks == 1 ? 7 : 8, 2);
      const PackedMatrix packed = matrix.packed(*kernels);
      const Blocks rows = random_rows(*kernels, matrix, 150);
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
}

TEST("products of activations whose sums are too large for 16-bit floats are those of plain arithmetic") {
  for (const ProductKernels* kernels : all_kernels()) {
    for (const BlockFormat format : kFormats) {
      const Matrix matrix(format, 16, 8, 4);
      const Blocks row = quantized(*kernels, Values(8 * kBlockValues, 5000.0f));
      const Values output = product(matrix.packed(*kernels), row.data(), 1);
      for (size_t j = 0; j < matrix.n_rows; ++j) {
        double size = 0, wanted = 0;
        for (size_t i = 0; i < 8 * kBlockValues; ++i) {
          const Weight weight = matrix.weight(j, i / kBlockValues, i % kBlockValues);
          wanted += 5000.0 * (weight.quant * weight.scale + weight.minimum);
          size += 5000.0 * (std::fabs(weight.quant * weight.scale) + std::fabs(weight.minimum));
        }
        CHECK(std::fabs(output[j] - wanted) <= 1e-3 * size);
      }
    }
  }
}

TEST("what is not a number stays in its own row") {
  for (const ProductKernels* kernels : all_kernels()) {
    for (const BlockFormat format : kFormats) {
      const Matrix matrix(format, 16, 8, 4);
      const size_t n_columns = 8 * kBlockValues;
      Values values = random_values(9 * n_columns, 5);
      const Values healthy = product(matrix.packed(*kernels), quantized(*kernels, values).data(), 9);
      for (size_t i = 0; i < n_columns; ++i) values[4 * n_columns + i] = i % 2 == 0 ? NAN : INFINITY;
      const Values ill = product(matrix.packed(*kernels), quantized(*kernels, values).data(), 9);

      for (size_t i = 0; i < ill.size(); ++i) CHECK(i / 16 == 4 ? !std::isfinite(ill[i]) : ill[i] == healthy[i]);
    }
  }
}

TEST("one NaN among a row's activations makes all its outputs NaN") {
  for (const ProductKernels* kernels : all_kernels()) {
    for (const BlockFormat format : kFormats) {
      const Matrix matrix(format, 16, 8, 4);
      for (size_t at = 0; at < kBlockValues; ++at) {
        Values values = random_values(8 * kBlockValues, 5);
        values[3 * kBlockValues + at] = at % 2 == 0 ? NAN : -NAN;
        for (const float output : product(matrix.packed(*kernels), quantized(*kernels, values).data(), 1)) {
          CHECK(std::isnan(output));
        }
      }
    }
  }
}

TEST("a product writes the outputs of its groups and no others") {
  for (const ProductKernels* kernels : all_kernels()) {
    const Matrix matrix(BlockFormat::kQ4_1, 64, 2, 6);
    const PackedMatrix packed = matrix.packed(*kernels);
    const Blocks rows = random_rows(*kernels, matrix, 3);
    const Values whole = product(packed, rows.data(), 3);
    Values part(whole.size(), -77.0f);

    packed.multiply(rows.data(), 3, 1, 3, part.data());

    for (size_t i = 0; i < part.size(); ++i) {
      CHECK_EQ(part[i], i % 64 / 16 == 1 || i % 64 / 16 == 2 ? whole[i] : -77.0f);
    }
  }
}

TEST("rows of outputs may lie anywhere") {
  constexpr size_t kRows = 2 * PackedMatrix::kMostRows - 3, kGap = 50;
  for (const ProductKernels* kernels : all_kernels()) {
    const Matrix matrix(BlockFormat::kQ4_1, 64, 2, 6);
    const PackedMatrix packed = matrix.packed(*kernels);
    const Blocks rows = random_rows(*kernels, matrix, kRows);
    const Values whole = product(packed, rows.data(), kRows);
    Values apart(kRows * kGap, -77.0f);
    std::vector<float*> outputs;
    for (size_t row = 0; row < kRows; ++row) outputs.push_back(&apart[(kRows - 1 - row) * kGap + 7]);
    float* const* places = outputs.data();

    packed.multiply(rows.data(), kRows, 1, 3, places);

    for (size_t i = 0; i < apart.size(); ++i) {
      const size_t row = kRows - 1 - i / kGap, column = i % kGap - 7;  // of the groups' outputs, or far beyond them
      CHECK_EQ(apart[i], column < 32 ? whole[row * 64 + 16 + column] : -77.0f);
    }
  }
}

TEST("quantising keeps every value within half a step, and the sums are those of the quants") {
  const Values values = random_values(50 * kBlockValues, 8);
  for (const ProductKernels* kernels : all_kernels()) {
    const Blocks blocks = quantized(*kernels, values);

    for (size_t b = 0; b < blocks.size(); ++b) {
      const ActivationBlock& block = blocks[b];
      float most = 0;
      int32_t sums[2] = {};
      for (size_t i = 0; i < kBlockValues; ++i) most = std::fmax(most, std::fabs(values[b * kBlockValues + i]));
      const float step = most / 127;
      for (size_t i = 0; i < kBlockValues; ++i) {
        sums[i / 16] += block.quants[i];
        CHECK(std::fabs(block.quants[i] * step - values[b * kBlockValues + i]) <= 0.5001f * step);
      }
      const float sum = step * static_cast<float>(sums[0] + sums[1]);
      CHECK_EQ(block.half_sums[0], sums[0]);
      CHECK_EQ(block.half_sums[1], sums[1]);
      CHECK(is_half(block.scale));
      CHECK(is_half(block.scaled_sum));
      CHECK(std::fabs(block.scale - step) <= step / 2048);
      CHECK(std::fabs(block.scaled_sum - sum) <= std::fabs(sum) / 2048);
    }
  }
}

TEST("all instruction sets quantise to the same bits") {
  const Values values = random_values(50 * kBlockValues, 8);
  const std::vector<const ProductKernels*> kernels = all_kernels();
  for (const ProductKernels* others : kernels) {
    const Blocks ours = quantized(*kernels[0], values), theirs = quantized(*others, values);
    CHECK(std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(ActivationBlock)) == 0);
  }
}

TEST("zeros are quantised to zeros") {
  for (const ProductKernels* kernels : all_kernels()) {
    const Blocks blocks = quantized(*kernels, Values(kBlockValues, 0.0f));

    CHECK_EQ(blocks[0].scale, 0.0f);
    CHECK_EQ(blocks[0].half_sums[0] + blocks[0].half_sums[1], 0);
    CHECK(std::all_of(blocks[0].quants, blocks[0].quants + kBlockValues, [](int8_t quant) { return quant == 0; }));
  }
}

KERNEL_TEST(best_products() != nullptr, "threads that share the work get what one thread gets") {
  constexpr int kThreads = 4;
  const ProductKernels& kernels = *best_products();
  const Matrix matrix(BlockFormat::kQ8_0, 80, 5, 9);
  const PackedMatrix packed = matrix.packed(kernels);
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
        kernels.quantize(&values[from * kBlockValues], to - from, &shared[from]);
        barrier.wait(kThreads);
        packed.multiply(shared.data(), 12, packed.n_groups() * thread / kThreads,
                        packed.n_groups() * (thread + 1) / kThreads, output.data());
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(output == product(packed, quantized(kernels, values).data(), 12));
  }
}

TEST("matrices of whole groups and blocks can be packed") {
  CHECK(PackedMatrix::fits(BlockFormat::kQ4_1, 16, 32));
  CHECK(PackedMatrix::fits(BlockFormat::kQ8_0, 49152, 576));
  CHECK(!PackedMatrix::fits(BlockFormat::kQ4_1, 24, 32));
  CHECK(!PackedMatrix::fits(BlockFormat::kQ4_1, 16, 48));
  CHECK(!PackedMatrix::fits(BlockFormat::kQ4_1, 0, 32));
  CHECK(!PackedMatrix::fits(BlockFormat::kQ4_1, 16, 0));
  CHECK(PackedMatrix::fits(BlockFormat::kQ4_K, 16, 512));
  CHECK(!PackedMatrix::fits(BlockFormat::kQ4_K, 16, 288));
}

KERNEL_TEST(best_products() != nullptr, "a packed matrix takes hardly more bytes than the original") {
  for (const BlockFormat format : kFormats) {
    const Matrix matrix(format, 48, 8, 1);
    const size_t bytes = matrix.packed(*best_products()).bytes();

    // Six-bit scales get a byte each: 4 bytes more for each 110. Each group ends with a cache line.
    CHECK(bytes >= matrix.bytes.size());
    CHECK(bytes <= matrix.bytes.size() * 114 / 110 + 3 * 64);
  }
}

}  // namespace
}  // namespace corosrv
