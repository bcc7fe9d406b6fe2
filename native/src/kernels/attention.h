// Computes the attention of one token over the cells of a KV cache.
//
// Pure arithmetic: uses neither ggml nor graphs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corosrv {

// The inputs and the output of those heads of one token that share a key head. Keys and values are 16-bit floats.
//
// The output depends on the cells that the mask shows, and on their order. Hidden cells are not read, and their number
// changes no bit (invariant I9).
struct Attention {
  size_t head_size;  // numbers of a head; a multiple of kHeadStep
  size_t n_heads;
  const float* queries;          // of the first head
  size_t query_stride;           // bytes from head to head
  size_t n_cells;                // of the cache, hidden ones included
  const uint16_t* mask;          // a 16-bit float per cell, added to its score; minus infinity hides the cell
  const uint8_t* keys;           // of the first cell
  size_t key_stride;             // bytes from cell to cell
  const uint8_t* values;         // of the first cell
  size_t value_stride;           // bytes from cell to cell
  float scale;                   // the factor of every score
  float* output;                 // n_heads times head_size numbers; zeros if the mask hides all cells
  const float* sinks = nullptr;  // for each head a score that only adds to the sum of its weights; null: none
};

constexpr size_t kHeadStep = 16;

// Computes the output. Any number of threads may call it, for different outputs.
using Attend = void (*)(const Attention& attention);

// Each returns null where this processor lacks the instructions.
Attend avx2_attention();
Attend avx512_attention();

// Returns the fastest of this processor; null where it has none.
inline Attend best_attention() {
  const Attend wide = avx512_attention();
  return wide != nullptr ? wide : avx2_attention();
}

}  // namespace corosrv
