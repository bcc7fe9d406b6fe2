#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/avx512.h"

namespace corosrv {

#if COROSRV_HAS_KERNELS

namespace {

// Heads that are computed together: they share what was read of a cell.
constexpr size_t kTileHeads = 4;
// Shown cells between two looks at the largest score: always as many, so that hidden ones change no sum.
constexpr size_t kTileCells = 128;
// Cells whose scores are summed up together.
constexpr size_t kStripe = 4;
// Cells between asking for one and reading it.
constexpr size_t kEarly = 12;

// Room behind a tile for what whole registers write.
constexpr size_t kSpare = 16;

// Shown cells and their scores; after soften() the weights of their values.
struct Tile {
  size_t n_found = 0;  // up to 15 more than a tile has; those belong to the next one
  size_t n_cells = 0;  // of n_found, in this tile
  alignas(64) int32_t cells[kTileCells + kSpare] = {};
  alignas(64) float biases[kTileCells + kSpare];
  alignas(64) float scores[kTileHeads][kTileCells + kSpare];
};

// Softmax so far, of each head.
struct Running {
  float most[kTileHeads];
  float sum[kTileHeads];
};

// Appends the shown ones of the up to 16 cells from `cell` on.
COROSRV_AVX512 void collect(const Attention& a, size_t cell, Tile& tile) {
  const size_t n = std::min<size_t>(16, a.n_cells - cell);
  const auto present = static_cast<__mmask16>((1u << n) - 1);
  const __m512 bias = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(present, a.mask + cell));
  const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __mmask16 shown = _mm512_mask_cmp_ps_mask(present, bias, hidden, _CMP_NEQ_UQ);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i cells = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(cell)));
  _mm512_storeu_si512(tile.cells + tile.n_found, _mm512_maskz_compress_epi32(shown, cells));
  _mm512_storeu_ps(tile.biases + tile.n_found, _mm512_maskz_compress_ps(shown, bias));
  tile.n_found += static_cast<size_t>(__builtin_popcount(shown));
}

// Sums of the lanes of four registers.
COROSRV_AVX512 inline __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 sums = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Asks for a cell that will be read soon: heads of one cell lie apart, which the processor's own prefetching misses.
inline void fetch_early(const uint8_t* cells, size_t stride, size_t n_values, int32_t cell) {
  const uint8_t* from = cells + static_cast<size_t>(cell) * stride;
  for (size_t byte = 0; byte < 2 * n_values; byte += 64) __builtin_prefetch(from + byte);
}

inline const float* query(const Attention& a, size_t head) {
  return reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(a.queries) + head * a.query_stride);
}

// Products of kHeads queries with the keys of the tile's cells.
template <size_t kHeads>
COROSRV_AVX512 void score(const Attention& a, size_t head, Tile& tile) {
  for (size_t i = 0; i < tile.n_cells; i += kStripe) {
    const uint8_t* keys[kStripe];
    __m512 sums[kHeads][kStripe];
    for (size_t j = 0; j < kStripe; ++j) {
      keys[j] = a.keys + static_cast<size_t>(tile.cells[i + j]) * a.key_stride;
      fetch_early(a.keys, a.key_stride, a.head_size, tile.cells[i + j + kEarly]);
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

// e to the power of x for x of at most 0, to a few units in the last place; NaN stays NaN.
COROSRV_AVX512 inline __m512 exponential(__m512 x) {
  // In this order of operands a NaN is kept.
  x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
  const __m512 log2_e = _mm512_set1_ps(1.44269504f);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2_e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, the first exact in few bits.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  // The series of e^r to the seventh term: |r| is at most half of ln 2.
  __m512 sum = _mm512_set1_ps(1.0f / 720);
  for (const float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(term));
  }
  return _mm512_scalef_ps(sum, n);
}

// Turns one head's scores into weights relative to the largest score of all tiles so far; returns the factor that
// earlier weights shrink by.
COROSRV_AVX512 float soften(const Attention& a, const Tile& tile, float* scores, float& most, float& sum) {
  const __m512 minus_infinity = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 largest = minus_infinity;
  for (size_t i = 0; i < tile.n_cells; i += 16) {
    const auto present = static_cast<__mmask16>(tile.n_cells - i >= 16 ? 0xffff : (1u << (tile.n_cells - i)) - 1);
    const __m512 score =
        _mm512_fmadd_ps(_mm512_load_ps(scores + i), _mm512_set1_ps(a.scale), _mm512_load_ps(tile.biases + i));
    const __m512 kept = _mm512_mask_mov_ps(minus_infinity, present, score);
    _mm512_store_ps(scores + i, kept);
    largest = _mm512_max_ps(largest, kept);
  }
  const float next = std::max(most, _mm512_reduce_max_ps(largest));
  const float shrink = std::isinf(most) ? 0.0f : std::exp(most - next);
  __m512 sums = _mm512_setzero_ps();
  for (size_t i = 0; i < tile.n_cells; i += 16) {
    const auto present = static_cast<__mmask16>(tile.n_cells - i >= 16 ? 0xffff : (1u << (tile.n_cells - i)) - 1);
    const __m512 difference = _mm512_sub_ps(_mm512_load_ps(scores + i), _mm512_set1_ps(next));
    const __m512 weight = _mm512_maskz_mov_ps(present, exponential(difference));
    _mm512_store_ps(scores + i, weight);
    sums = _mm512_add_ps(sums, weight);
  }
  most = next;
  sum = sum * shrink + _mm512_reduce_add_ps(sums);
  return shrink;
}

// Adds the tile's weighted values to kSteps times 16 outputs of kHeads heads, which shrink first.
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
    fetch_early(a.values + 2 * at, a.value_stride, kSteps * kHeadStep, tile.cells[i + kEarly]);
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
    shrink[h] = soften(a, tile, tile.scores[h], running.most[h], running.sum[h]);
  }
  size_t at = 0;
  for (; at + 4 * kHeadStep <= a.head_size; at += 4 * kHeadStep) gather<kHeads, 4>(a, tile, shrink, at, output);
  for (; at < a.head_size; at += kHeadStep) gather<kHeads, 1>(a, tile, shrink, at, output);
}

// Fills the tile with the shown cells from `cell` on; returns how far it got.
size_t fill(const Attention& a, size_t cell, Tile& tile) {
  for (; cell < a.n_cells && tile.n_found < kTileCells; cell += 16) collect(a, cell, tile);
  tile.n_cells = std::min(tile.n_found, kTileCells);
  // The last stripe is computed whole, and some cells beyond are asked for.
  if (tile.n_cells < kTileCells) std::fill_n(tile.cells + tile.n_cells, kSpare, tile.cells[0]);
  return cell;
}

void drop_computed(Tile& tile) {
  std::copy(tile.cells + tile.n_cells, tile.cells + tile.n_found, tile.cells);
  std::copy(tile.biases + tile.n_cells, tile.biases + tile.n_found, tile.biases);
  tile.n_found -= tile.n_cells;
}

// All cells for kHeads heads, from `head` on.
template <size_t kHeads>
void attend_heads(const Attention& a, size_t head) {
  float* output = a.output + head * a.head_size;
  std::fill_n(output, kHeads * a.head_size, 0.0f);
  Running running;
  std::fill_n(running.most, kTileHeads, -std::numeric_limits<float>::infinity());
  std::fill_n(running.sum, kTileHeads, 0.0f);
  Tile tile;
  for (size_t cell = 0; cell < a.n_cells || tile.n_found > 0;) {
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
