// Includes llama.h, and owns what libllama allocates. Only files of this folder include it.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/backend.h"

namespace corosrv {

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;
using ContextHandle = std::unique_ptr<llama_context, FreeContext>;

// Owner of a llama_batch of a fixed capacity, of tokens or, where `width` is not 0, of embedding rows: libllama takes
// no batch of both. `is_mrope`: rows have four positions each; tokens have one in any case.
class LlamaBatch {
 public:
  explicit LlamaBatch(int32_t capacity, int32_t width = 0, bool is_mrope = false)
      : width_(static_cast<size_t>(width)),
        is_mrope_(is_mrope && width > 0),
        batch_(llama_batch_init(capacity, width, 1)),
        positions_(static_cast<size_t>(capacity) * (is_mrope_ ? kMropeSections : 1)),
        filled_(batch_) {
    filled_.pos = positions_.data();
  }
  ~LlamaBatch() { llama_batch_free(batch_); }
  LlamaBatch(const LlamaBatch&) = delete;
  LlamaBatch& operator=(const LlamaBatch&) = delete;

  const llama_batch& fill(const std::vector<Row>& rows) { return fill(rows.data(), rows.size()); }

  // All of the rows have an embedding, if this is a batch of such.
  const llama_batch& fill(const Row* rows, size_t n_rows) {
    filled_.n_tokens = static_cast<int32_t>(n_rows);
    for (size_t i = 0; i < n_rows; ++i) {
      if (width_ == 0) {
        batch_.token[i] = rows[i].token;
      } else {
        std::copy_n(rows[i].embedding, width_, batch_.embd + i * width_);
      }
      set_position(i, n_rows, rows[i].rope);
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = rows[i].slot;
      batch_.logits[i] = rows[i].wants_logits;
    }
    return filled_;
  }

 private:
  static constexpr size_t kMropeSections = 4;

  // M-RoPE's stand section by section: the t of all rows, then y, x and z.
  void set_position(size_t row, size_t n_rows, const RopePosition& rope) {
    positions_[row] = rope.t;
    if (!is_mrope_) return;
    positions_[n_rows + row] = rope.y;
    positions_[2 * n_rows + row] = rope.x;
    positions_[3 * n_rows + row] = rope.z;
  }

  const size_t width_;  // numbers of an embedding row; 0: tokens
  const bool is_mrope_;
  llama_batch batch_;  // as libllama made it, and frees it
  std::vector<llama_pos> positions_;
  llama_batch filled_;  // with positions_ in place of its own
};

}  // namespace corosrv
