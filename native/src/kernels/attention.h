// Attention of one token over the cells of a KV cache.
//
// Pure arithmetic: knows neither ggml nor graphs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace corosrv {

// The heads of one token that share a key head, and what they look at. Keys and values are 16-bit floats.
//
// The result depends on the cells that the mask shows, in their order, and on nothing else: hidden cells are not even
// read, whatever their number (invariant I9).
struct Attention {
  size_t head_size;  // values of a head; a multiple of kHeadStep
  size_t n_heads;
  const float* queries;   // the first head's
  size_t query_stride;    // bytes from head to head
  size_t n_cells;         // of the cache
  const uint16_t* mask;   // 16-bit float for each cell: added to its score; minus infinity hides it
  const uint8_t* keys;    // the first cell's
  size_t key_stride;      // bytes from cell to cell
  const uint8_t* values;  // the first cell's
  size_t value_stride;    // bytes from cell to cell
  float scale;            // of the scores
  float* output;          // head after head; zeros when no cell is shown
};

constexpr size_t kHeadStep = 16;

// Whether this processor can run attend().
bool can_attend();
void attend(const Attention& attention);

}  // namespace corosrv
