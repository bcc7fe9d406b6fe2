// The layouts of ggml's block-quantised formats and 16-bit floats, and how corosrv lays the same numbers out for its
// products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corosrv {

// Numbers of one block, which share a scale. Formats named _K, and IQ4_XS, have 8 such blocks in a block of ggml's.
constexpr size_t kBlockValues = 32;
// Rows of a matrix that are packed and computed together.
constexpr size_t kGroupRows = 16;
constexpr size_t kCacheLine = 64;

enum class BlockFormat {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kIQ4_NL,
  kMXFP4,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_XS,
  kF16,
  kBF16
};
constexpr size_t kQuantFormats = 13, kFloatFormats = 2;  // the floats are the last ones

constexpr bool is_float(BlockFormat format) { return static_cast<size_t>(format) >= kQuantFormats; }

// A number is (quant - offset) * scale + minimum; a quant of IQ4_NL, IQ4_XS and MXFP4 is an index of a table.
//
// Packed, a group of 16 rows begins with the parameters of all its blocks, padded to a cache line: the first
// parameter of each row, then the second of each. Then come the quants: for each block of 32, lines of 64 bytes, each
// with 4 bytes of every row. Floats have no parameters: for each column of F16, and for each two columns of BF16, the
// numbers of all rows.
struct PackedLayout {
  size_t bytes;     // of a block of ggml's
  size_t n_blocks;  // of 32 numbers in it
  size_t n_halves;  // parameters of it that are 16-bit floats; they come first
  size_t n_bytes;   // parameters of it that are bytes
  size_t n_bits;    // of a quant: the lower four in four lines of nibbles, of which the low ones are numbers 0 to 15;
                    // of 2 or 3 bits the lower two in two lines, with four quants in a byte, then a line of third bits

  constexpr size_t params() const { return (2 * n_halves + n_bytes) * kGroupRows; }
  constexpr size_t quants() const { return n_bits * kBlockValues / 8 * kGroupRows; }  // bytes of 32 numbers

  // `n_row_blocks`: blocks of 32 in a row.
  constexpr size_t group_params(size_t n_row_blocks) const {
    return (n_row_blocks / n_blocks * params() + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  constexpr size_t group(size_t n_row_blocks) const { return group_params(n_row_blocks) + n_row_blocks * quants(); }
};

constexpr PackedLayout layout_of(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0:  // scale
    case BlockFormat::kIQ4_NL:
      return {18, 1, 1, 0, 4};
    case BlockFormat::kQ4_1:  // scale, minimum
      return {20, 1, 2, 0, 4};
    case BlockFormat::kQ5_0:
      return {22, 1, 1, 0, 5};
    case BlockFormat::kQ5_1:
      return {24, 1, 2, 0, 5};
    case BlockFormat::kQ8_0:
      return {34, 1, 1, 0, 8};
    case BlockFormat::kMXFP4:  // exponent
      return {17, 1, 0, 1, 4};
    case BlockFormat::kQ2_K:  // scale of scales, minus that of minima; for each 16 numbers both in a byte
      return {84, 8, 2, 16, 2};
    case BlockFormat::kQ3_K:  // scale of scales; for each 16 numbers their scale
      return {110, 8, 1, 16, 3};
    case BlockFormat::kQ4_K:  // scale of scales, minus that of minima; for each 32 numbers their scale and minimum
      return {144, 8, 2, 16, 4};
    case BlockFormat::kQ5_K:
      return {176, 8, 2, 16, 5};
    case BlockFormat::kQ6_K:  // scale of scales; for each 16 numbers their scale
      return {210, 8, 1, 16, 6};
    case BlockFormat::kIQ4_XS:  // scale of scales; for each 32 numbers their scale
      return {136, 8, 1, 8, 4};
    case BlockFormat::kF16:
    case BlockFormat::kBF16:
      return {64, 1, 0, 0, 16};
  }
  return {};
}

// Returns whether each 16 numbers have a scale of their own.
constexpr bool has_half_scales(BlockFormat format) {
  return format == BlockFormat::kQ2_K || format == BlockFormat::kQ3_K || format == BlockFormat::kQ6_K;
}

// Packs kGroupRows rows of ggml's blocks into layout.group(n_row_blocks) bytes.
void pack_group(BlockFormat format, const uint8_t* rows, size_t n_row_blocks, uint8_t* group);

}  // namespace corosrv
