// The one body of all products, for products_avx2.cpp and products_avx512.cpp alone.
//
// Whoever includes it has defined before, in corosrv's anonymous namespace: COROSRV_KERNEL, the target attribute of
// every function; Ints and Floats, registers of kLanes numbers of 32 bits; kSignedQuants, whether quants of 8 bits are
// multiplied as signed bytes; and the functions called here that this file does not define.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/packed_matrix.h"

namespace corosrv {

namespace {

// What the products of a format need besides its layout. Unpacked quants are unsigned bytes up to kMost; kOffset is
// subtracted from each.
template <unsigned kMostQuant, int kSubtracted>
struct QuantRange {
  static constexpr unsigned kMost = kMostQuant;
  static constexpr int kOffset = kSubtracted;
};
template <BlockFormat kFormat>
struct Quants : QuantRange<15, 0> {};
template <>
struct Quants<BlockFormat::kQ4_0> : QuantRange<15, 8> {};
template <>
struct Quants<BlockFormat::kQ2_K> : QuantRange<3, 0> {};
template <>
struct Quants<BlockFormat::kQ3_K> : QuantRange<7, 4> {};
template <>
struct Quants<BlockFormat::kQ5_0> : QuantRange<31, 16> {};
template <>
struct Quants<BlockFormat::kQ5_1> : QuantRange<31, 0> {};
template <>
struct Quants<BlockFormat::kQ5_K> : QuantRange<31, 0> {};
template <>
struct Quants<BlockFormat::kQ6_K> : QuantRange<63, 32> {};
template <>
struct Quants<BlockFormat::kQ8_0> : QuantRange<255, 128> {};
template <>
struct Quants<BlockFormat::kIQ4_NL> : QuantRange<255, 128> {
  static constexpr uint8_t kTable[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
};
template <>
struct Quants<BlockFormat::kIQ4_XS> : Quants<BlockFormat::kIQ4_NL> {};
template <>
struct Quants<BlockFormat::kMXFP4> : QuantRange<24, 12> {  // twice the values of four-bit floats
  static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

// Fetches the quants of one block that is used later. Behind a matrix's end that fetches what nobody needs.
template <BlockFormat kFormat>
COROSRV_KERNEL inline void fetch_ahead(const uint8_t* quants) {
  constexpr size_t kBytes = layout_of(kFormat).quants();
#pragma GCC unroll 8
  for (size_t line = 0; line < kBytes; line += kCacheLine) __builtin_prefetch(quants + kBytesAhead + line);
}

// Returns the bits from kBit on of each byte, which `mask` selects once they are the bits from kTo on.
template <int kBit, int kTo = 4>
COROSRV_KERNEL inline Ints upper_bits(Ints packed, Ints mask) {
  if constexpr (kBit <= kTo) return both(shift_left<kTo - kBit>(packed), mask);
  return both(shift_right<(kBit > kTo ? kBit - kTo : 0)>(packed), mask);
}

// Makes bytes of the quants of one block: register i has numbers 4 i to 4 i + 3 of kLanes rows.
template <BlockFormat kFormat>
COROSRV_KERNEL inline void unpack(const uint8_t* quants, Ints (&weights)[8]) {
  constexpr size_t kBits = layout_of(kFormat).n_bits, kLine = 4 * kGroupRows;
  if constexpr (kBits == 8) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) weights[i] = load(quants + i * kLine);
  } else if constexpr (kBits < 4) {
    const Ints quarter = bytes_of(0x03);
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half) {
      const Ints packed = load(quants + half * kLine);
      Ints* const first = weights + 4 * half;
      first[0] = both(packed, quarter);
      first[1] = both(shift_right<2>(packed), quarter);
      first[2] = both(shift_right<4>(packed), quarter);
      first[3] = both(shift_right<6>(packed), quarter);
    }
  } else {
    const Ints nibble = bytes_of(0x0f);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      const Ints packed = load(quants + i * kLine);
      weights[i] = both(packed, nibble);
      weights[i + 4] = both(shift_right<4>(packed), nibble);
    }
  }
  if constexpr (kBits == 3) {
    const Ints third = load(quants + 2 * kLine), mask = bytes_of(0x04);
    weights[0] = either(weights[0], upper_bits<0, 2>(third, mask));
    weights[1] = either(weights[1], upper_bits<1, 2>(third, mask));
    weights[2] = either(weights[2], upper_bits<2, 2>(third, mask));
    weights[3] = either(weights[3], upper_bits<3, 2>(third, mask));
    weights[4] = either(weights[4], upper_bits<4, 2>(third, mask));
    weights[5] = either(weights[5], upper_bits<5, 2>(third, mask));
    weights[6] = either(weights[6], upper_bits<6, 2>(third, mask));
    weights[7] = either(weights[7], upper_bits<7, 2>(third, mask));
  }
  if constexpr (kBits == 5) {
    const Ints fifth = load(quants + 4 * kLine), mask = bytes_of(0x10);
    weights[0] = either(weights[0], upper_bits<0>(fifth, mask));
    weights[1] = either(weights[1], upper_bits<1>(fifth, mask));
    weights[2] = either(weights[2], upper_bits<2>(fifth, mask));
    weights[3] = either(weights[3], upper_bits<3>(fifth, mask));
    weights[4] = either(weights[4], upper_bits<4>(fifth, mask));
    weights[5] = either(weights[5], upper_bits<5>(fifth, mask));
    weights[6] = either(weights[6], upper_bits<6>(fifth, mask));
    weights[7] = either(weights[7], upper_bits<7>(fifth, mask));
  }
  if constexpr (kBits == 6) {
    const Ints mask = bytes_of(0x30);
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half) {
      const Ints upper = load(quants + (4 + half) * kLine);
      Ints* const first = weights + 4 * half;
      first[0] = either(first[0], upper_bits<0>(upper, mask));
      first[1] = either(first[1], upper_bits<2>(upper, mask));
      first[2] = either(first[2], upper_bits<4>(upper, mask));
      first[3] = either(first[3], upper_bits<6>(upper, mask));
    }
  }
  if constexpr (kFormat == BlockFormat::kIQ4_NL || kFormat == BlockFormat::kIQ4_XS || kFormat == BlockFormat::kMXFP4) {
    const Ints table = load_table(Quants<kFormat>::kTable);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) weights[i] = look_up(table, weights[i]);
  }
  if constexpr (kSignedQuants && Quants<kFormat>::kMost > 127) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) weights[i] = differing(weights[i], bytes_of(0x80));
  }
}

// Returns the scales (kWhich 0) or the minima (1) of a part, before they are multiplied with their own scale: each has
// a byte, or four bits of one.
template <BlockFormat kFormat, size_t kWhich>
COROSRV_KERNEL inline Floats byte_scale(const uint8_t* bytes, size_t part) {
  if constexpr (kFormat != BlockFormat::kQ2_K) {
    return to_floats(widen_bytes(bytes + (2 * part + kWhich) * kGroupRows));
  } else {
    return to_floats(both(shift_right<4 * kWhich>(widen_bytes(bytes + part * kGroupRows)), ints_of(15)));
  }
}

// Returns the scale of a part of 32 numbers, all of them or a half, from `params` of a block of ggml's. `part`: which
// of its parts.
template <BlockFormat kFormat>
COROSRV_KERNEL inline Floats scale_of(const uint8_t* params, size_t part, size_t lane) {
  constexpr PackedLayout kLayout = layout_of(kFormat);
  if constexpr (kFormat == BlockFormat::kMXFP4) return load_powers(params + lane);
  const Floats scale = load_halves(params + 2 * lane);
  if constexpr (kLayout.n_blocks == 1) return scale;
  if constexpr (kLayout.n_halves == 1) return mul(scale, load_signed_bytes(params + (2 + part) * kGroupRows + lane));
  return mul(scale, byte_scale<kFormat, 0>(params + 4 * kGroupRows + lane, part));
}

template <BlockFormat kFormat>
COROSRV_KERNEL inline Floats minimum_of(const uint8_t* params, size_t part, size_t lane) {
  const Floats minimum = load_halves(params + 2 * (kGroupRows + lane));
  if constexpr (layout_of(kFormat).n_blocks == 1) return minimum;
  return mul(minimum, byte_scale<kFormat, 1>(params + 4 * kGroupRows + lane, part));
}

// Returns the products of the registers [kFrom, kTo) with one row's quants, less the offset.
template <BlockFormat kFormat, size_t kFrom, size_t kTo>
COROSRV_KERNEL inline Floats product(const Ints (&weights)[8], const int8_t* quants, int32_t sum) {
  using Format = Quants<kFormat>;
  constexpr int kOffset = kSignedQuants && Format::kMost > 127 ? 0 : Format::kOffset;
  return to_floats(dot<Format::kMost, kFrom, kTo>(weights, quants, ints_of(-kOffset * sum)));
}

// Computes kLanes outputs for each of kRows rows of activations. An output is summed over the blocks in order, in one
// lane and by the same operations for any kRows.
template <BlockFormat kFormat, size_t kRows>
COROSRV_KERNEL void multiply_lanes(const uint8_t* group, size_t n_blocks, const ActivationBlock* rows, float* output,
                                   size_t n_outputs, size_t lane) {
  constexpr PackedLayout kLayout = layout_of(kFormat);
  constexpr bool kHasMinima = kLayout.n_halves == 2;
  constexpr size_t kParts = has_half_scales(kFormat) ? 2 : 1;
  const uint8_t* quants = group + kLayout.group_params(n_blocks) + 4 * lane;
  Floats sums[kRows];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) sums[r] = floats_of(0.0f);
  for (size_t b = 0; b < n_blocks; ++b) {
    const uint8_t* params = group + b / kLayout.n_blocks * kLayout.params();
    fetch_ahead<kFormat>(quants + b * kLayout.quants());
    Ints weights[8];
    unpack<kFormat>(quants + b * kLayout.quants(), weights);
    Floats scales[kParts], minima[kParts];
#pragma GCC unroll 2
    for (size_t p = 0; p < kParts; ++p) {
      scales[p] = scale_of<kFormat>(params, b % kLayout.n_blocks * kParts + p, lane);
      if constexpr (kHasMinima) minima[p] = minimum_of<kFormat>(params, b % kLayout.n_blocks * kParts + p, lane);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const ActivationBlock& block = rows[r * n_blocks + b];
      const Floats scale = floats_of(block.scale);
      if constexpr (kParts == 1) {
        const int32_t sum = block.half_sums[0] + block.half_sums[1];
        if constexpr (kHasMinima) sums[r] = multiply_add(minima[0], floats_of(block.scaled_sum), sums[r]);
        const Floats all = product<kFormat, 0, 8>(weights, block.quants, sum);
        sums[r] = multiply_add(all, mul(scales[0], scale), sums[r]);
      } else {
        if constexpr (kHasMinima) {
          sums[r] = multiply_add(minima[0], floats_of(block.scale * static_cast<float>(block.half_sums[0])), sums[r]);
          sums[r] = multiply_add(minima[1], floats_of(block.scale * static_cast<float>(block.half_sums[1])), sums[r]);
        }
        const Floats first = product<kFormat, 0, 4>(weights, block.quants, block.half_sums[0]);
        const Floats second = product<kFormat, 4, 8>(weights, block.quants, block.half_sums[1]);
        sums[r] = multiply_add(first, mul(scales[0], scale), sums[r]);
        sums[r] = multiply_add(second, mul(scales[1], scale), sums[r]);
      }
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) store(output + r * n_outputs + lane, sums[r]);
}

template <BlockFormat kFormat, size_t kRows>
COROSRV_KERNEL void multiply(const uint8_t* group, size_t n_blocks, const ActivationBlock* rows, float* output,
                             size_t n_outputs) {
  for (size_t lane = 0; lane < kGroupRows; lane += kLanes) {
    multiply_lanes<kFormat, kRows>(group, n_blocks, rows, output, n_outputs, lane);
  }
}

// Loads the numbers of two columns of kLanes rows.
template <BlockFormat kFormat>
COROSRV_KERNEL inline void load_columns(const uint8_t* columns, size_t lane, Floats& first, Floats& second) {
  if constexpr (kFormat == BlockFormat::kBF16) {
    load_bfloat_pairs(columns + 4 * lane, first, second);
  } else {
    first = load_halves(columns + 2 * lane);
    second = load_halves(columns + 2 * (kGroupRows + lane));
  }
}

// Computes the outputs of kParts registers of 16-bit floats for each of kRows rows of activations. An output is summed
// by the same operations for any kRows: over the even columns and over the odd ones, side by side, where registers
// suffice.
template <BlockFormat kFormat, size_t kRows, size_t kParts>
COROSRV_KERNEL void multiply_float_lanes(const uint8_t* group, size_t n_columns, const float* const* rows,
                                         float* output, size_t n_outputs, size_t lane) {
  constexpr size_t kChains = kLanes / 8;
  Floats sums[kRows][kParts * kChains];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (size_t i = 0; i < kParts * kChains; ++i) sums[r][i] = floats_of(0.0f);
  }
  for (size_t column = 0; column < n_columns; column += 2) {
    const uint8_t* numbers = group + column * 2 * kGroupRows;
    __builtin_prefetch(numbers + kBytesAhead);
    Floats weights[2][kParts];
#pragma GCC unroll 2
    for (size_t p = 0; p < kParts; ++p) {
      load_columns<kFormat>(numbers, lane + p * kLanes, weights[0][p], weights[1][p]);
    }
#pragma GCC unroll 2
    for (size_t c = 0; c < 2; ++c) {
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const Floats activation = floats_of(rows[r][column + c]);
#pragma GCC unroll 2
        for (size_t p = 0; p < kParts; ++p) {
          Floats& sum = sums[r][p * kChains + c % kChains];
          sum = multiply_add(weights[c][p], activation, sum);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kParts; ++p) {
      Floats sum = sums[r][p * kChains];
      if constexpr (kChains > 1) sum = add(sum, sums[r][p * kChains + 1]);
      store(output + r * n_outputs + lane + p * kLanes, sum);
    }
  }
}

template <BlockFormat kFormat, size_t kRows>
COROSRV_KERNEL void multiply_floats(const uint8_t* group, size_t n_blocks, const float* const* rows, float* output,
                                    size_t n_outputs) {
  // With more rows a group has to be read twice where registers are narrow.
  constexpr size_t kParts = kRows <= 6 ? kGroupRows / kLanes : 1;
  for (size_t lane = 0; lane < kGroupRows; lane += kParts * kLanes) {
    multiply_float_lanes<kFormat, kRows, kParts>(group, n_blocks * kBlockValues, rows, output, n_outputs, lane);
  }
}

using Tiles = std::array<ProductKernels::Tile, ProductKernels::kTileRows>;
using FloatTiles = std::array<ProductKernels::FloatTile, ProductKernels::kTileRows>;

template <BlockFormat kFormat, size_t... kRows>
constexpr Tiles tiles_of(std::index_sequence<kRows...>) {
  return {&multiply<kFormat, kRows + 1>...};
}

template <BlockFormat kFormat, size_t... kRows>
constexpr FloatTiles float_tiles_of(std::index_sequence<kRows...>) {
  return {&multiply_floats<kFormat, kRows + 1>...};
}

template <size_t... kFormats>
constexpr std::array<Tiles, kQuantFormats> all_tiles(std::index_sequence<kFormats...>) {
  return {tiles_of<static_cast<BlockFormat>(kFormats)>(std::make_index_sequence<ProductKernels::kTileRows>())...};
}

// Returns the tiles of every format of quants.
constexpr std::array<Tiles, kQuantFormats> all_tiles() { return all_tiles(std::make_index_sequence<kQuantFormats>()); }

// Returns those of floats.
constexpr std::array<FloatTiles, kFloatFormats> all_float_tiles() {
  constexpr auto kRows = std::make_index_sequence<ProductKernels::kTileRows>();
  return {float_tiles_of<BlockFormat::kF16>(kRows), float_tiles_of<BlockFormat::kBF16>(kRows)};
}

}  // namespace

}  // namespace corosrv
