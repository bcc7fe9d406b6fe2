#include "llama/slot_pages.h"

#include <ggml-backend.h>

#include <algorithm>

#include "base/pages.h"
#include "llama/log.h"

namespace corosrv {

bool SlotPages::on_node(ggml_tensor* node, bool ask, void* user_data) {
  auto& pages = *static_cast<SlotPages*>(user_data);
  if (pages.is_finding_) {
    pages.note(*node);
    return false;
  }
  return pages.kernels_ != nullptr && GraphKernels::on_node(node, ask, pages.kernels_);
}

// The graph of one token is made, seen by note(), and given up after its first node.
void SlotPages::find(llama_context* context) {
  memory_ = llama_get_memory(context);
  if (memory_ == nullptr) return;
  n_slots_ = static_cast<int32_t>(llama_n_seq_max(context));
  const int32_t n_threads = llama_n_threads(context), n_threads_batch = llama_n_threads_batch(context);
  llama_set_n_threads(context, 1, 1);
  llama_set_abort_callback(context, [](void*) { return true; }, nullptr);
  is_finding_ = true;
  LlamaBatch batch(1);
  llama_decode(context, batch.fill({{0, 0, 0, true}}));
  llama_synchronize(context);
  is_finding_ = false;
  llama_set_abort_callback(context, nullptr, nullptr);
  llama_set_n_threads(context, n_threads, n_threads_batch);
  take_last_error();  // libllama logs as one that the graph was given up
  llama_memory_seq_rm(memory_, 0, -1, -1);
  give_back_all();
}

// Keys and values are written by ggml_set_rows(), whose result is a view of the tensor that holds them for all slots.
void SlotPages::note(const ggml_tensor& node) {
  if (node.op != GGML_OP_SET_ROWS || node.view_src == nullptr) return;
  const ggml_tensor& tensor = *node.view_src;
  if (tensor.buffer == nullptr || ggml_backend_buffer_get_type(tensor.buffer) != ggml_backend_cpu_buffer_type()) return;
  const int64_t n_slots = tensor.ne[2];
  if ((n_slots != 1 && n_slots != n_slots_) || tensor.ne[3] != 1 || !ggml_is_contiguous(&tensor)) return;
  auto* const begin = static_cast<char*>(tensor.data);
  const bool is_known =
      std::any_of(caches_.begin(), caches_.end(), [begin](const Cache& cache) { return cache.begin == begin; });
  if (!is_known) caches_.push_back({begin, tensor.nb[2], static_cast<int32_t>(n_slots)});
}

bool SlotPages::is_empty(int32_t slot) const { return llama_memory_seq_pos_max(memory_, slot) < 0; }

bool SlotPages::are_empty() const {
  for (int32_t slot = 0; slot < n_slots_; ++slot) {
    if (!is_empty(slot)) return false;
  }
  return true;
}

// A page that belongs to two slots is given back with the second of them.
void SlotPages::give_back(int32_t slot) const {
  if (caches_.empty() || !is_empty(slot)) return;
  const bool is_first_free = slot > 0 && is_empty(slot - 1);
  const bool is_last_free = slot + 1 < n_slots_ && is_empty(slot + 1);
  const bool is_all_free = are_empty();
  for (const Cache& cache : caches_) {
    if (cache.n_slots < n_slots_) {
      if (is_all_free) give_back_pages(cache.begin, cache.end());
      continue;
    }
    const size_t shared = std::min(page_size() - 1, cache.slot_bytes);
    give_back_pages(cache.slot(slot) - (is_first_free ? shared : 0),
                    cache.slot(slot + 1) + (is_last_free ? shared : 0));
  }
}

void SlotPages::give_back_all() const {
  for (const Cache& cache : caches_) give_back_pages(cache.begin, cache.end());
}

}  // namespace corosrv
