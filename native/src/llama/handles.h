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
using Context = std::unique_ptr<llama_context, FreeContext>;

// Owner of a llama_batch of a fixed capacity, of tokens or, where `width` is not 0, of embedding rows: libllama takes
// no batch of both.
class LlamaBatch {
 public:
  explicit LlamaBatch(int32_t capacity, int32_t width = 0)
      : width_(static_cast<size_t>(width)), batch_(llama_batch_init(capacity, width, 1)) {}
  ~LlamaBatch() { llama_batch_free(batch_); }
  LlamaBatch(const LlamaBatch&) = delete;
  LlamaBatch& operator=(const LlamaBatch&) = delete;

  const llama_batch& fill(const std::vector<Row>& rows) { return fill(rows.data(), rows.size()); }

  // All of the rows have an embedding, if this is a batch of such.
  const llama_batch& fill(const Row* rows, size_t n_rows) {
    batch_.n_tokens = static_cast<int32_t>(n_rows);
    for (size_t i = 0; i < n_rows; ++i) {
      if (width_ == 0) {
        batch_.token[i] = rows[i].token;
      } else {
        std::copy_n(rows[i].embedding, width_, batch_.embd + i * width_);
      }
      batch_.pos[i] = rows[i].position;
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = rows[i].slot;
      batch_.logits[i] = rows[i].wants_logits;
    }
    return batch_;
  }

 private:
  const size_t width_;  // numbers of an embedding row; 0: tokens
  llama_batch batch_;
};

}  // namespace corosrv
