// The one body of attention, for attention_avx2.cpp and attention_avx512.cpp alone.
//
// Whoever includes it has included avx2.h or avx512.h, and defined in corosrv's anonymous namespace: kStripe, cells
// whose scores are summed up together, and kSteps, registers of a head's values that are; and the functions called here
// that this file does not define.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/exponential.h"

namespace corosrv {

namespace {

// Heads that are computed together, so that a cell is read once for all of them.
constexpr size_t kTileHeads = 4;
// Shown cells whose largest score is found together. The number is fixed, so that hidden cells change no sum.
constexpr size_t kTileCells = 128;
// Cells between the prefetch of a cell and its use.
constexpr size_t kPrefetchDistance = 12;
// Cells whose masks are looked at together.
constexpr size_t kLook = 16;
// Room behind a tile, because whole registers are written.
constexpr size_t kSpare = 16;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

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
COROSRV_KERNEL void score(const Attention& a, size_t head, Tile& tile) {
  for (size_t i = 0; i < tile.n_cells; i += kStripe) {
    const uint8_t* keys[kStripe];
    Floats sums[kHeads][kStripe];
    for (size_t j = 0; j < kStripe; ++j) {
      keys[j] = a.keys + static_cast<size_t>(tile.cells[i + j]) * a.key_stride;
      prefetch(a.keys, a.key_stride, a.head_size, tile.cells[i + j + kPrefetchDistance]);
#pragma GCC unroll 4
      for (size_t h = 0; h < kHeads; ++h) sums[h][j] = floats_of(0.0f);
    }
    for (size_t at = 0; at < a.head_size; at += kLanes) {
      Floats queries[kHeads];
#pragma GCC unroll 4
      for (size_t h = 0; h < kHeads; ++h) queries[h] = load_floats(query(a, head + h) + at);
#pragma GCC unroll 4
      for (size_t j = 0; j < kStripe; ++j) {
        const Floats key = load_halves(keys[j] + 2 * at);
#pragma GCC unroll 4
        for (size_t h = 0; h < kHeads; ++h) sums[h][j] = multiply_add(queries[h], key, sums[h][j]);
      }
    }
#pragma GCC unroll 4
    for (size_t h = 0; h < kHeads; ++h) store_sums(tile.scores[h] + i, sums[h]);
  }
}

// Turns one head's scores into weights relative to the largest score so far. Returns the factor for earlier weights.
COROSRV_KERNEL float soften(const Attention& a, const Tile& tile, float* scores, float& largest, float& sum) {
  Floats maxima = floats_of(kHidden);
  for (size_t i = 0; i < tile.n_cells; i += kLanes) {
    const Floats score = multiply_add(load_floats(scores + i), floats_of(a.scale), load_floats(tile.biases + i));
    const Floats kept = first_of(tile.n_cells - i, score, floats_of(kHidden));
    store(scores + i, kept);
    maxima = maximum(maxima, kept);
  }
  const float next = std::max(largest, largest_of(maxima));
  const float shrink = std::isinf(largest) ? 0.0f : std::exp(largest - next);
  Floats sums = floats_of(0.0f);
  for (size_t i = 0; i < tile.n_cells; i += kLanes) {
    const Floats weight = exponential(add(load_floats(scores + i), floats_of(-next)));
    const Floats kept = first_of(tile.n_cells - i, weight, floats_of(0.0f));
    store(scores + i, kept);
    sums = add(sums, kept);
  }
  largest = next;
  sum = sum * shrink + sum_of(sums);
  return shrink;
}

// Multiplies kSome registers of outputs of kHeads heads by `shrink`, then adds the tile's weighted values.
template <size_t kHeads, size_t kSome>
COROSRV_KERNEL void gather(const Attention& a, const Tile& tile, const float* shrink, size_t at, float* output) {
  Floats sums[kHeads][kSome];
#pragma GCC unroll 4
  for (size_t h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kSome; ++s) {
      sums[h][s] = mul(load_floats(output + h * a.head_size + at + s * kLanes), floats_of(shrink[h]));
    }
  }
  for (size_t i = 0; i < tile.n_cells; ++i) {
    prefetch(a.values + 2 * at, a.value_stride, kSome * kLanes, tile.cells[i + kPrefetchDistance]);
    const uint8_t* cell = a.values + static_cast<size_t>(tile.cells[i]) * a.value_stride + 2 * at;
    Floats values[kSome];
#pragma GCC unroll 4
    for (size_t s = 0; s < kSome; ++s) values[s] = load_halves(cell + 2 * s * kLanes);
#pragma GCC unroll 4
    for (size_t h = 0; h < kHeads; ++h) {
      const Floats weight = floats_of(tile.scores[h][i]);
#pragma GCC unroll 4
      for (size_t s = 0; s < kSome; ++s) sums[h][s] = multiply_add(weight, values[s], sums[h][s]);
    }
  }
#pragma GCC unroll 4
  for (size_t h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kSome; ++s) store(output + h * a.head_size + at + s * kLanes, sums[h][s]);
  }
}

template <size_t kHeads>
COROSRV_KERNEL void add_tile(const Attention& a, size_t head, Tile& tile, Running& running) {
  float* output = a.output + head * a.head_size;
  float shrink[kHeads];
  score<kHeads>(a, head, tile);
  for (size_t h = 0; h < kHeads; ++h) {
    shrink[h] = soften(a, tile, tile.scores[h], running.largest[h], running.sum[h]);
  }
  size_t at = 0;
  for (; at + kSteps * kLanes <= a.head_size; at += kSteps * kLanes) {
    gather<kHeads, kSteps>(a, tile, shrink, at, output);
  }
  for (; at < a.head_size; at += kLanes) gather<kHeads, 1>(a, tile, shrink, at, output);
}

// Returns the first cell, in steps of 32 from `cell` on, behind which the mask may show some: of a cache that sequences
// share it hides most.
COROSRV_KERNEL size_t skip_hidden(const Attention& a, size_t cell) {
  constexpr size_t kStep = 32;
  while (cell + kStep <= a.n_cells && hides_all(a.mask + cell)) cell += kStep;
  return cell;
}

// Fills the tile with shown cells, from `cell` on. Returns the first cell that was not looked at.
COROSRV_KERNEL size_t fill(const Attention& a, size_t cell, Tile& tile) {
  for (cell = skip_hidden(a, cell); cell < a.n_cells && tile.n_collected < kTileCells;
       cell = skip_hidden(a, cell + kLook)) {
    tile.n_collected += collect(a.mask + cell, std::min(kLook, a.n_cells - cell), static_cast<int32_t>(cell),
                                tile.cells + tile.n_collected, tile.biases + tile.n_collected);
  }
  tile.n_cells = std::min(tile.n_collected, kTileCells);
  // The last stripe is computed in full, and some cells behind it are prefetched: these need valid numbers.
  if (tile.n_cells < kTileCells) std::fill_n(tile.cells + tile.n_cells, kSpare, tile.cells[0]);
  return cell;
}

// Keeps the cells that belong to the next tile.
COROSRV_KERNEL void drop_computed(Tile& tile) {
  std::copy(tile.cells + tile.n_cells, tile.cells + tile.n_collected, tile.cells);
  std::copy(tile.biases + tile.n_cells, tile.biases + tile.n_collected, tile.biases);
  tile.n_collected -= tile.n_cells;
}

// Computes the output of kHeads heads, from `head` on.
template <size_t kHeads>
COROSRV_KERNEL void attend_heads(const Attention& a, size_t head) {
  float* output = a.output + head * a.head_size;
  std::fill_n(output, kHeads * a.head_size, 0.0f);
  Running running;
  std::fill_n(running.largest, kTileHeads, kHidden);
  std::fill_n(running.sum, kTileHeads, 0.0f);
  if (a.sinks != nullptr) {
    std::copy_n(a.sinks + head, kHeads, running.largest);
    std::fill_n(running.sum, kHeads, 1.0f);
  }
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

COROSRV_KERNEL void attend(const Attention& attention) {
  size_t head = 0;
  for (; head + kTileHeads <= attention.n_heads; head += kTileHeads) attend_heads<kTileHeads>(attention, head);
  switch (attention.n_heads - head) {
    case 3:
      return attend_heads<3>(attention, head);
    case 2:
      return attend_heads<2>(attention, head);
    case 1:
      return attend_heads<1>(attention, head);
  }
}

}  // namespace

}  // namespace corosrv
