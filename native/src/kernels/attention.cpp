#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/avx512.h"

namespace corosrv {

#if COROSRV_HAS_KERNELS

namespace {

// Heads that are computed together, so that a cell is read once for all of them.
constexpr size_t kTileHeads = 4;
// Shown cells whose largest score is found together. The number is fixed, so that hidden cells change no sum.
constexpr size_t kTileCells = 128;
// Cells whose scores are summed up together.
constexpr size_t kStripe = 4;
// Cells between the prefetch of a cell and its use.
constexpr size_t kPrefetchDistance = 12;

// Room behind a tile, because whole registers are written.
constexpr size_t kSpare = 16;

// Some shown cells and their scores, which soften() turns into the weights of their values.
struct Tile {
  size_t n_collected = 0;  // up to 15 more than fit; those belong to the next tile
  size_t n_cells = 0;      // those of this tile
  alignas(64) int32_t cells[kTileCells + kSpare] = {};
  alignas(64) float biases[kTileCells + kSpare];
  alignas(64) float scores[kTileHeads][kTileCells + kSpare];
};

// The state of each head's softmax after some tiles.
struct Running {
  float largest[kTileHeads];  // score
  float sum[kTileHeads];      // of the weights
};

// Appends those of the next 16 cells that the mask shows, from `cell` on.
COROSRV_AVX512 void collect(const Attention& a, size_t cell, Tile& tile) {
  const size_t n = std::min<size_t>(16, a.n_cells - cell);
  const auto present = static_cast<__mmask16>((1u << n) - 1);
  const __m512 bias = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(present, a.mask + cell));
  const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __mmask16 shown = _mm512_mask_cmp_ps_mask(present, bias, hidden, _CMP_NEQ_UQ);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i cells = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(cell)));
  _mm512_storeu_si512(tile.cells + tile.n_collected, _mm512_maskz_compress_epi32(shown, cells));
  _mm512_storeu_ps(tile.biases + tile.n_collected, _mm512_maskz_compress_ps(shown, bias));
  tile.n_collected += static_cast<size_t>(__builtin_popcount(shown));
}

// Returns the sum of the lanes of each of four registers.
COROSRV_AVX512 inline __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 sums = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Prefetches a cell that is read soon: heads of one cell lie apart, a pattern that the processor does not detect.
inline void prefetch(const uint8_t* cells, size_t stride, size_t n_values, int32_t cell) {
  const uint8_t* from = cells + static_cast<size_t>(cell) * stride;
  for (size_t byte = 0; byte < 2 * n_values; byte += 64) __builtin_prefetch(from + byte);
}

inline const float* query(const Attention& a, size_t head) {
  return reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(a.queries) + head * a.query_stride);
}

// Computes the products of kHeads queries with the keys of the tile's cells.
template <size_t kHeads>
COROSRV_AVX512 void score(const Attention& a, size_t head, Tile& tile) {
  for (size_t i = 0; i < tile.n_cells; i += kStripe) {
    const uint8_t* keys[kStripe];
    __m512 sums[kHeads][kStripe];
    for (size_t j = 0; j < kStripe; ++j) {
      keys[j] = a.keys + static_cast<size_t>(tile.cells[i + j]) * a.key_stride;
      prefetch(a.keys, a.key_stride, a.head_size, tile.cells[i + j + kPrefetchDistance]);
#pragma GCC unroll 4
      for (size_t h = 0; h < kHeads; ++h) sums[h][j] = _mm512_setzero_ps();
    }
    for (size_t at = 0; at < a.head_size; at += kHeadStep) {
      __m512 queries[kHeads];
#pragma GCC unroll 4
      for (size_t h = 0; h < kHeads; ++h) queries[h] = _mm512_loadu_ps(query(a, head + h) + at);
#pragma GCC unroll 4
      for (size_t j = 0; j < kStripe; ++j) {
        const __m512 key = load_halves(keys[j] + 2 * at);
#pragma GCC unroll 4
        for (size_t h = 0; h < kHeads; ++h) sums[h][j] = _mm512_fmadd_ps(queries[h], key, sums[h][j]);
      }
    }
#pragma GCC unroll 4
    for (size_t h = 0; h < kHeads; ++h) {
      _mm_store_ps(tile.scores[h] + i, sum_lanes(sums[h][0], sums[h][1], sums[h][2], sums[h][3]));
    }
  }
}

// Returns e to the power of x, for x up to 0, within a few units in the last place. NaN stays NaN.
COROSRV_AVX512 inline __m512 exponential(__m512 x) {
  // max returns its second operand if one is NaN.
  x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
  const __m512 log2_e = _mm512_set1_ps(1.44269504f);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2_e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, of which the first has few bits: its product with n is exact.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  // Seven terms of the series of e^r, for |r| up to half of ln 2.
  __m512 sum = _mm512_set1_ps(1.0f / 720);
  for (const float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(term));
  }
  return _mm512_scalef_ps(sum, n);
}

// Turns one head's scores into weights relative to the largest score so far. Returns the factor for earlier weights.
COROSRV_AVX512 float soften(const Attention& a, const Tile& tile, float* scores, float& largest, float& sum) {
  const __m512 minus_infinity = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 maxima = minus_infinity;
  for (size_t i = 0; i < tile.n_cells; i += 16) {
    const auto present = static_cast<__mmask16>(tile.n_cells - i >= 16 ? 0xffff : (1u << (tile.n_cells - i)) - 1);
    const __m512 score =
        _mm512_fmadd_ps(_mm512_load_ps(scores + i), _mm512_set1_ps(a.scale), _mm512_load_ps(tile.biases + i));
    const __m512 kept = _mm512_mask_mov_ps(minus_infinity, present, score);
    _mm512_store_ps(scores + i, kept);
    maxima = _mm512_max_ps(maxima, kept);
  }
  const float next = std::max(largest, _mm512_reduce_max_ps(maxima));
  const float shrink = std::isinf(largest) ? 0.0f : std::exp(largest - next);
  __m512 sums = _mm512_setzero_ps();
  for (size_t i = 0; i < tile.n_cells; i += 16) {
    const auto present = static_cast<__mmask16>(tile.n_cells - i >= 16 ? 0xffff : (1u << (tile.n_cells - i)) - 1);
    const __m512 difference = _mm512_sub_ps(_mm512_load_ps(scores + i), _mm512_set1_ps(next));
    const __m512 weight = _mm512_maskz_mov_ps(present, exponential(difference));
    _mm512_store_ps(scores + i, weight);
    sums = _mm512_add_ps(sums, weight);
  }
  largest = next;
  sum = sum * shrink + _mm512_reduce_add_ps(sums);
  return shrink;
}

// Multiplies kSteps times 16 outputs of kHeads heads by `shrink`, then adds the tile's weighted values.
template <size_t kHeads, size_t kSteps>
COROSRV_AVX512 void gather(const Attention& a, const Tile& tile, const float* shrink, size_t at, float* output) {
  __m512 sums[kHeads][kSteps];
#pragma GCC unroll 4
  for (size_t h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kSteps; ++s) {
      sums[h][s] =
          _mm512_mul_ps(_mm512_loadu_ps(output + h * a.head_size + at + s * kHeadStep), _mm512_set1_ps(shrink[h]));
    }
  }
  for (size_t i = 0; i < tile.n_cells; ++i) {
    prefetch(a.values + 2 * at, a.value_stride, kSteps * kHeadStep, tile.cells[i + kPrefetchDistance]);
    const uint8_t* cell = a.values + static_cast<size_t>(tile.cells[i]) * a.value_stride + 2 * at;
    __m512 values[kSteps];
#pragma GCC unroll 4
    for (size_t s = 0; s < kSteps; ++s) values[s] = load_halves(cell + 2 * s * kHeadStep);
#pragma GCC unroll 4
    for (size_t h = 0; h < kHeads; ++h) {
      const __m512 weight = _mm512_set1_ps(tile.scores[h][i]);
#pragma GCC unroll 4
      for (size_t s = 0; s < kSteps; ++s) sums[h][s] = _mm512_fmadd_ps(weight, values[s], sums[h][s]);
    }
  }
#pragma GCC unroll 4
  for (size_t h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kSteps; ++s) {
      _mm512_storeu_ps(output + h * a.head_size + at + s * kHeadStep, sums[h][s]);
    }
  }
}

template <size_t kHeads>
void add_tile(const Attention& a, size_t head, Tile& tile, Running& running) {
  float* output = a.output + head * a.head_size;
  float shrink[kHeads];
  score<kHeads>(a, head, tile);
  for (size_t h = 0; h < kHeads; ++h) {
    shrink[h] = soften(a, tile, tile.scores[h], running.largest[h], running.sum[h]);
  }
  size_t at = 0;
  for (; at + 4 * kHeadStep <= a.head_size; at += 4 * kHeadStep) gather<kHeads, 4>(a, tile, shrink, at, output);
  for (; at < a.head_size; at += kHeadStep) gather<kHeads, 1>(a, tile, shrink, at, output);
}

// Returns the first cell, in steps of 32 from `cell` on, behind which the mask may show some: of a cache that sequences
// share it hides most.
COROSRV_AVX512 size_t skip_hidden(const Attention& a, size_t cell) {
  constexpr size_t kStep = 32;
  const __m512i hidden = _mm512_set1_epi16(static_cast<int16_t>(0xFC00));  // minus infinity
  while (cell + kStep <= a.n_cells && _mm512_cmpneq_epi16_mask(_mm512_loadu_si512(a.mask + cell), hidden) == 0) {
    cell += kStep;
  }
  return cell;
}

// Fills the tile with shown cells, from `cell` on. Returns the first cell that was not looked at.
size_t fill(const Attention& a, size_t cell, Tile& tile) {
  for (cell = skip_hidden(a, cell); cell < a.n_cells && tile.n_collected < kTileCells;
       cell = skip_hidden(a, cell + 16)) {
    collect(a, cell, tile);
  }
  tile.n_cells = std::min(tile.n_collected, kTileCells);
  // The last stripe is computed in full, and some cells behind it are prefetched: these need valid numbers.
  if (tile.n_cells < kTileCells) std::fill_n(tile.cells + tile.n_cells, kSpare, tile.cells[0]);
  return cell;
}

// Keeps the cells that belong to the next tile.
void drop_computed(Tile& tile) {
  std::copy(tile.cells + tile.n_cells, tile.cells + tile.n_collected, tile.cells);
  std::copy(tile.biases + tile.n_cells, tile.biases + tile.n_collected, tile.biases);
  tile.n_collected -= tile.n_cells;
}

// Computes the output of kHeads heads, from `head` on.
template <size_t kHeads>
void attend_heads(const Attention& a, size_t head) {
  float* output = a.output + head * a.head_size;
  std::fill_n(output, kHeads * a.head_size, 0.0f);
  Running running;
  std::fill_n(running.largest, kTileHeads, -std::numeric_limits<float>::infinity());
  std::fill_n(running.sum, kTileHeads, 0.0f);
  Tile tile;
  for (size_t cell = 0; cell < a.n_cells || tile.n_collected > 0;) {
    cell = fill(a, cell, tile);
    if (tile.n_cells > 0) add_tile<kHeads>(a, head, tile, running);
    drop_computed(tile);
  }
  for (size_t h = 0; h < kHeads; ++h) {
    const float share = running.sum[h] == 0.0f ? 0.0f : 1.0f / running.sum[h];
    for (size_t i = 0; i < a.head_size; ++i) output[h * a.head_size + i] *= share;
  }
}

}  // namespace

bool can_attend() { return has_avx512(); }

void attend(const Attention& attention) {
  size_t head = 0;
  for (; head + 4 <= attention.n_heads; head += 4) attend_heads<4>(attention, head);
  switch (attention.n_heads - head) {
    case 3:
      return attend_heads<3>(attention, head);
    case 2:
      return attend_heads<2>(attention, head);
    case 1:
      return attend_heads<1>(attention, head);
  }
}

#else

bool can_attend() { return false; }
void attend(const Attention&) {}

#endif

}  // namespace corosrv
