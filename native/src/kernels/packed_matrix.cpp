#include "kernels/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/avx512.h"

namespace corosrv {

namespace {

constexpr size_t kGroupRows = PackedMatrix::kGroupRows;
constexpr size_t kCacheLine = 64;

// The bytes of ggml's blocks: 16-bit floats first, then quants. In Q4_1 the low nibbles are numbers 0 to 15, the high
// nibbles 16 to 31.
struct Layout {
  size_t halves;  // bytes of 16-bit floats in a block
  size_t quants;  // bytes of quants in a block

  size_t block() const { return halves + quants; }
  // A group begins with the halves of all its blocks (for each block: 16 scales, then 16 minima), padded to a cache
  // line; then come the quants.
  size_t group_halves(size_t n_blocks) const {
    return (n_blocks * halves * kGroupRows + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  size_t group(size_t n_blocks) const { return group_halves(n_blocks) + n_blocks * quants * kGroupRows; }
};

Layout layout_of(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_1:
      return {4, 16};
    case BlockFormat::kQ8_0:
      return {2, 32};
  }
  return {0, 0};
}

template <typename Word>
Word load(const uint8_t* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Copies consecutive words of a block into a packed group, where they lie 16 words apart. Each is XORed with `flip`.
template <typename Word>
void interleave(const uint8_t* words, size_t bytes, Word flip, uint8_t* packed) {
  for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
    const Word word = static_cast<Word>(load<Word>(words + i * sizeof(Word)) ^ flip);
    std::memcpy(packed + i * kGroupRows * sizeof(Word), &word, sizeof word);
  }
}

// Interleaves 16 rows: 4 bytes of quants of each row, then the next 4 of each. Signed quants become unsigned, because
// the processor multiplies unsigned by signed bytes: `flip` adds 128 to each, which the product subtracts again.
void pack_group(const Layout& layout, const uint8_t* rows, size_t n_blocks, uint32_t flip, uint8_t* group) {
  uint8_t* quants = group + layout.group_halves(n_blocks);
  for (size_t r = 0; r < kGroupRows; ++r) {
    for (size_t b = 0; b < n_blocks; ++b) {
      const uint8_t* block = rows + (r * n_blocks + b) * layout.block();
      interleave<uint16_t>(block, layout.halves, 0, group + b * layout.halves * kGroupRows + r * 2);
      interleave<uint32_t>(block + layout.halves, layout.quants, flip, quants + b * layout.quants * kGroupRows + r * 4);
    }
  }
}

#if COROSRV_HAS_KERNELS

// Rows of activations that are multiplied together. More would leave no registers for a block of weights.
constexpr size_t kTileRows = 8;
// Rows of activations that are multiplied with all groups before the next rows follow, so that they stay in the
// second-level cache.
constexpr size_t kChunkRows = 8 * kTileRows;

constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

COROSRV_AVX512 float round_to_half(float value) { return _cvtsh_ss(_cvtss_sh(value, kNearest)); }

COROSRV_AVX512 void quantize_avx512(const float* values, size_t n_blocks, ActivationBlock* blocks) {
  for (size_t b = 0; b < n_blocks; ++b) {
    const __m512 low = _mm512_loadu_ps(values + b * kBlockValues);
    const __m512 high = _mm512_loadu_ps(values + b * kBlockValues + 16);
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
    const float scale = largest / 127.0f;
    const __m512 inverse = _mm512_set1_ps(largest != 0.0f ? 127.0f / largest : 0.0f);
    const __m512i low_quants = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
    const __m512i high_quants = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));

    ActivationBlock& block = blocks[b];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quants), _mm512_cvtsepi32_epi8(low_quants));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.quants + 16), _mm512_cvtsepi32_epi8(high_quants));
    block.sum = _mm512_reduce_add_epi32(_mm512_add_epi32(low_quants, high_quants));
    block.scale = round_to_half(scale);
    block.scaled_sum = round_to_half(scale * static_cast<float>(block.sum));
  }
}

// Returns four activations, repeated in each of 16 lanes.
COROSRV_AVX512 inline __m512i broadcast(const int8_t* quants) {
  return _mm512_set1_epi32(load<int32_t>(reinterpret_cast<const uint8_t*>(quants)));
}

COROSRV_AVX512_VNNI inline __m512i dot(const __m512i (&weights)[8], const int8_t* quants, __m512i sum) {
#pragma GCC unroll 8
  for (size_t i = 0; i < 8; ++i) sum = _mm512_dpbusd_epi32(sum, weights[i], broadcast(quants + 4 * i));
  return sum;
}

// Computes sixteen outputs for each of kRows rows of activations. An output is summed over the blocks in order, in one
// lane and by the same operations for any kRows.
template <size_t kRows>
COROSRV_AVX512_VNNI void multiply_q4_1(const uint8_t* group, size_t n_blocks, const ActivationBlock* rows,
                                       float* output, size_t n_outputs) {
  const uint8_t* quants = group + Layout{4, 16}.group_halves(n_blocks);
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) sums[r] = _mm512_setzero_ps();
  for (size_t b = 0; b < n_blocks; ++b) {
    __m512i weights[8];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      const __m512i packed = _mm512_loadu_si512(quants + (b * 4 + i) * 64);
      weights[i] = _mm512_and_si512(packed, nibble);
      weights[i + 4] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
    }
    const __m512 scales = load_halves(group + b * 64);
    const __m512 minima = load_halves(group + b * 64 + 32);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const ActivationBlock& block = rows[r * n_blocks + b];
      const __m512i products = dot(weights, block.quants, _mm512_setzero_si512());
      const __m512 factor = _mm512_mul_ps(scales, _mm512_set1_ps(block.scale));
      sums[r] = _mm512_fmadd_ps(minima, _mm512_set1_ps(block.scaled_sum), sums[r]);
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), factor, sums[r]);
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) _mm512_storeu_ps(output + r * n_outputs, sums[r]);
}

template <size_t kRows>
COROSRV_AVX512_VNNI void multiply_q8_0(const uint8_t* group, size_t n_blocks, const ActivationBlock* rows,
                                       float* output, size_t n_outputs) {
  const uint8_t* quants = group + Layout{2, 32}.group_halves(n_blocks);
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) sums[r] = _mm512_setzero_ps();
  for (size_t b = 0; b < n_blocks; ++b) {
    __m512i weights[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) weights[i] = _mm512_loadu_si512(quants + (b * 8 + i) * 64);
    const __m512 scales = load_halves(group + b * 32);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const ActivationBlock& block = rows[r * n_blocks + b];
      const __m512i products = dot(weights, block.quants, _mm512_set1_epi32(-128 * block.sum));
      const __m512 factor = _mm512_mul_ps(scales, _mm512_set1_ps(block.scale));
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), factor, sums[r]);
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) _mm512_storeu_ps(output + r * n_outputs, sums[r]);
}

using Tile = void (*)(const uint8_t*, size_t, const ActivationBlock*, float*, size_t);
using Tiles = std::array<Tile, kTileRows>;

template <size_t... kRows>
constexpr std::pair<Tiles, Tiles> make_tiles(std::index_sequence<kRows...>) {
  return {{&multiply_q4_1<kRows + 1>...}, {&multiply_q8_0<kRows + 1>...}};
}

// Returns kernels of which the n-th multiplies n + 1 rows.
const Tiles& tiles_of(BlockFormat format) {
  static constexpr std::pair<Tiles, Tiles> kTiles = make_tiles(std::make_index_sequence<kTileRows>());
  return format == BlockFormat::kQ4_1 ? kTiles.first : kTiles.second;
}

#endif

}  // namespace

void PackedMatrix::Free::operator()(uint8_t* data) const { ::operator delete[](data, std::align_val_t(kCacheLine)); }

bool PackedMatrix::fits(size_t n_rows, size_t n_columns) {
  return n_rows > 0 && n_columns > 0 && n_rows % kGroupRows == 0 && n_columns % kBlockValues == 0;
}

PackedMatrix::PackedMatrix(BlockFormat format, const void* blocks, size_t n_rows, size_t n_columns)
    : format_(format),
      n_groups_(n_rows / kGroupRows),
      n_blocks_(n_columns / kBlockValues),
      group_bytes_(layout_of(format).group(n_blocks_)),
      data_(new (std::align_val_t(kCacheLine)) uint8_t[n_groups_ * group_bytes_]) {
  assert(fits(n_rows, n_columns));
  const Layout layout = layout_of(format);
  const auto* rows = static_cast<const uint8_t*>(blocks);
  const uint32_t flip = format == BlockFormat::kQ8_0 ? 0x80808080 : 0;
  for (size_t g = 0; g < n_groups_; ++g) {
    pack_group(layout, rows + g * kGroupRows * n_blocks_ * layout.block(), n_blocks_, flip,
               data_.get() + g * group_bytes_);
  }
}

#if COROSRV_HAS_KERNELS

bool PackedMatrix::is_supported() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

void PackedMatrix::multiply(const ActivationBlock* activations, size_t n_rows, size_t from, size_t to,
                            float* output) const {
  const Tiles& tiles = tiles_of(format_);
  const size_t n_outputs = n_groups_ * kGroupRows;
  for (size_t chunk = 0; chunk < n_rows; chunk += kChunkRows) {
    const size_t chunk_end = std::min(chunk + kChunkRows, n_rows);
    for (size_t g = from; g < to; ++g) {
      const uint8_t* group = data_.get() + g * group_bytes_;
      for (size_t row = chunk; row < chunk_end; row += kTileRows) {
        const size_t n = std::min(kTileRows, chunk_end - row);
        tiles[n - 1](group, n_blocks_, activations + row * n_blocks_, output + row * n_outputs + g * kGroupRows,
                     n_outputs);
      }
    }
  }
}

void quantize(const float* values, size_t n_blocks, ActivationBlock* blocks) {
  quantize_avx512(values, n_blocks, blocks);
}

#else

bool PackedMatrix::is_supported() { return false; }
void PackedMatrix::multiply(const ActivationBlock*, size_t, size_t, size_t, float*) const {}
void quantize(const float*, size_t, ActivationBlock*) {}

#endif

}  // namespace corosrv
