#include "kernels/block_formats.h"

#include <cstring>

namespace corosrv {

namespace {

constexpr size_t kMostBlocks = 8, kMostParams = 20;

// What a block of ggml's holds: its parameters in the order of PackedLayout, and a byte for each quant.
struct Unpacked {
  uint8_t params[kMostParams];
  uint8_t quants[kMostBlocks * kBlockValues];
};

uint32_t load_word(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// The low nibbles are numbers 0 to 15, the high nibbles 16 to 31.
void unpack_nibbles(const uint8_t* from, uint8_t* quants) {
  for (size_t i = 0; i < 16; ++i) {
    quants[i] = from[i] & 15;
    quants[i + 16] = from[i] >> 4;
  }
}

// 32 fifth bits, and then nibbles.
void unpack_five_bits(const uint8_t* from, uint8_t* quants) {
  unpack_nibbles(from + 4, quants);
  const uint32_t fifth = load_word(from);
  for (size_t i = 0; i < kBlockValues; ++i) quants[i] = static_cast<uint8_t>(quants[i] | (fifth >> i & 1) << 4);
}

// Two scales, and 12 bytes of eight scales and minima with six bits each. `params` gets the second scale negated, as a
// minimum is subtracted.
void unpack_k_params(const uint8_t* from, uint8_t* params) {
  std::memcpy(params, from, 4);
  params[3] ^= 0x80;
  const uint8_t* packed = from + 4;
  for (size_t b = 0; b < 4; ++b) {
    params[4 + 2 * b] = packed[b] & 63;
    params[5 + 2 * b] = packed[b + 4] & 63;
    params[12 + 2 * b] = static_cast<uint8_t>((packed[b + 8] & 15) | (packed[b] >> 6) << 4);
    params[13 + 2 * b] = static_cast<uint8_t>((packed[b + 8] >> 4) | (packed[b + 4] >> 6) << 4);
  }
}

// Quants of kLow bits, 32 bytes for as many blocks as a byte has quants: the lowest bits are those of the first block.
// `upper`: a byte for each of 32 numbers, with one more bit for each block; null where there are none.
template <size_t kLow>
void unpack_k_quants(const uint8_t* lower, const uint8_t* upper, uint8_t* quants) {
  constexpr size_t kTogether = 8 / kLow;
  for (size_t b = 0; b < 8; ++b) {
    for (size_t i = 0; i < kBlockValues; ++i) {
      const unsigned low = lower[b / kTogether * 32 + i] >> b % kTogether * kLow & ((1u << kLow) - 1);
      const unsigned high = upper == nullptr ? 0 : upper[i] >> b & 1;
      quants[b * kBlockValues + i] = static_cast<uint8_t>(low | high << kLow);
    }
  }
}

// For each 16 numbers a byte with scale and minimum, of four bits each; their scales at the end.
void unpack_q2_k(const uint8_t* from, Unpacked& to) {
  std::memcpy(to.params, from + 80, 4);
  to.params[3] ^= 0x80;  // a minimum is subtracted
  std::memcpy(to.params + 4, from, 16);
  unpack_k_quants<2>(from + 16, nullptr, to.quants);
}

// Third bits, quarters, and 12 bytes of 16 scales with six bits each, less 32; their scale at the end.
void unpack_q3_k(const uint8_t* from, Unpacked& to) {
  std::memcpy(to.params, from + 108, 2);
  const uint8_t* scales = from + 96;
  for (size_t i = 0; i < 16; ++i) {
    const unsigned low = scales[i % 8] >> i / 8 * 4 & 15, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    to.params[2 + i] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  unpack_k_quants<2>(from + 32, from, to.quants);
}

// The scale of scales, two upper bits of each, their lower four; they are less 32.
void unpack_iq4_xs(const uint8_t* from, Unpacked& to) {
  std::memcpy(to.params, from, 2);
  const uint32_t upper = load_word(from + 2) & 0xffff;
  for (size_t b = 0; b < 8; ++b) {
    const unsigned low = from[4 + b / 2] >> b % 2 * 4 & 15, high = upper >> b * 2 & 3;
    to.params[2 + b] = static_cast<uint8_t>((low | high << 4) - 32);
    unpack_nibbles(from + 8 + 16 * b, to.quants + b * kBlockValues);
  }
}

// For each 128 numbers 64 bytes of nibbles, and 32 bytes of upper bits; scales, and their scale at the end.
void unpack_q6_k(const uint8_t* from, Unpacked& to) {
  std::memcpy(to.params, from + 208, 2);
  std::memcpy(to.params + 2, from + 192, 16);
  for (size_t b = 0; b < 8; ++b) {
    const uint8_t* low = from + b / 4 * 64 + b % 2 * 32;
    const uint8_t* high = from + 128 + b / 4 * 32;
    for (size_t i = 0; i < kBlockValues; ++i) {
      const unsigned nibble = low[i] >> b % 4 / 2 * 4 & 15, upper = high[i] >> b % 4 * 2 & 3;
      to.quants[b * kBlockValues + i] = static_cast<uint8_t>(nibble | upper << 4);
    }
  }
}

void unpack(BlockFormat format, const uint8_t* block, Unpacked& to) {
  const PackedLayout layout = layout_of(format);
  const size_t n_params = 2 * layout.n_halves + layout.n_bytes;
  switch (format) {
    case BlockFormat::kQ4_0:
    case BlockFormat::kQ4_1:
    case BlockFormat::kIQ4_NL:
    case BlockFormat::kMXFP4:
      std::memcpy(to.params, block, n_params);
      return unpack_nibbles(block + n_params, to.quants);
    case BlockFormat::kQ5_0:
    case BlockFormat::kQ5_1:
      std::memcpy(to.params, block, n_params);
      return unpack_five_bits(block + n_params, to.quants);
    case BlockFormat::kQ8_0:
      std::memcpy(to.params, block, n_params);
      // Signed quants become unsigned, with an offset: processors multiply unsigned by signed bytes.
      for (size_t i = 0; i < kBlockValues; ++i) to.quants[i] = block[n_params + i] ^ 0x80;
      return;
    case BlockFormat::kQ2_K:
      return unpack_q2_k(block, to);
    case BlockFormat::kQ3_K:
      return unpack_q3_k(block, to);
    case BlockFormat::kQ4_K:
      unpack_k_params(block, to.params);
      return unpack_k_quants<4>(block + 16, nullptr, to.quants);
    case BlockFormat::kQ5_K:
      unpack_k_params(block, to.params);
      return unpack_k_quants<4>(block + 48, block + 16, to.quants);
    case BlockFormat::kQ6_K:
      return unpack_q6_k(block, to);
    case BlockFormat::kIQ4_XS:
      return unpack_iq4_xs(block, to);
    case BlockFormat::kF16:  // which have no blocks
    case BlockFormat::kBF16:
      return;
  }
}

// Packs the quants of 32 numbers of one row; its words lie kGroupRows words apart.
void pack_quants(size_t n_bits, const uint8_t* quants, uint8_t* to) {
  uint32_t words[8] = {};
  for (size_t i = 0; i < 8; ++i) {
    const uint32_t four = load_word(quants + 4 * i);
    if (n_bits == 8) {
      words[i] = four;
      continue;
    }
    if (n_bits < 4) {
      words[i / 4] |= (four & 0x03030303) << i % 4 * 2;
      if (n_bits == 3) words[2] |= (four >> 2 & 0x01010101) << i;
      continue;
    }
    words[i % 4] |= (four & 0x0f0f0f0f) << i / 4 * 4;
    if (n_bits == 5) words[4] |= (four >> 4 & 0x01010101) << i;
    if (n_bits == 6) words[4 + i / 4] |= (four >> 4 & 0x03030303) << i % 4 * 2;
  }
  for (size_t i = 0; i < n_bits; ++i) std::memcpy(to + i * kGroupRows * 4, &words[i], 4);
}

// `n_together`: numbers of one row that lie side by side.
void pack_floats(const uint8_t* rows, size_t n_columns, size_t n_together, uint8_t* group) {
  const size_t bytes = 2 * n_together;
  for (size_t i = 0; i < n_columns / n_together; ++i) {
    for (size_t r = 0; r < kGroupRows; ++r) {
      std::memcpy(group + bytes * (i * kGroupRows + r), rows + 2 * r * n_columns + bytes * i, bytes);
    }
  }
}

}  // namespace

void pack_group(BlockFormat format, const uint8_t* rows, size_t n_row_blocks, uint8_t* group) {
  if (format == BlockFormat::kF16) return pack_floats(rows, n_row_blocks * kBlockValues, 1, group);
  if (format == BlockFormat::kBF16) return pack_floats(rows, n_row_blocks * kBlockValues, 2, group);
  const PackedLayout layout = layout_of(format);
  const size_t n_blocks = n_row_blocks / layout.n_blocks;
  uint8_t* quants = group + layout.group_params(n_row_blocks);
  Unpacked unpacked;
  for (size_t r = 0; r < kGroupRows; ++r) {
    for (size_t b = 0; b < n_blocks; ++b) {
      unpack(format, rows + (r * n_blocks + b) * layout.bytes, unpacked);
      uint8_t* halves = group + b * layout.params();
      uint8_t* bytes = halves + 2 * layout.n_halves * kGroupRows;
      for (size_t i = 0; i < layout.n_halves; ++i) {
        std::memcpy(halves + 2 * (i * kGroupRows + r), unpacked.params + 2 * i, 2);
      }
      for (size_t i = 0; i < layout.n_bytes; ++i) {
        bytes[i * kGroupRows + r] = unpacked.params[2 * layout.n_halves + i];
      }
      for (size_t i = 0; i < layout.n_blocks; ++i) {
        uint8_t* first = quants + (b * layout.n_blocks + i) * layout.quants() + r * 4;
        pack_quants(layout.n_bits, unpacked.quants + i * kBlockValues, first);
      }
    }
  }
}

}  // namespace corosrv
