// Where the processor keeps what the slots of a context hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/graph_kernels.h"
#include "llama/handles.h"

namespace corosrv {

// Gives the memory of keys and values back to the system, slot by slot, and all of it when the context is new, for
// where libllama has overwritten it with zeros all the same (see buffer_zeros.h). A slot takes its memory again page by
// page, when something is computed in it.
//
// libllama tells nobody where a cache lies, but each of its graphs writes to it: ggml passes every node of a graph to
// its evaluation callback. What other devices keep is left to them, and so are the states of recurrent layers.
//
// Used by the thread that uses the context; outlives it.
class SlotPages {
 public:
  // `kernels` get the nodes of the context's graphs as well; null: there are none.
  explicit SlotPages(GraphKernels* kernels) : kernels_(kernels) {}
  SlotPages(const SlotPages&) = delete;
  SlotPages& operator=(const SlotPages&) = delete;

  // llama_context_params.cb_eval; `pages` is the SlotPages.
  static bool on_node(ggml_tensor* node, bool ask, void* pages);

  // Finds out where a new context keeps what, and gives back all of it. Computes one node of a graph.
  void find(llama_context* context);

  // Gives back the memory of a slot that holds nothing. Where slots share a cache: of all of them, if none holds
  // anything.
  void give_back(int32_t slot) const;
  // The same for all slots, none of which holds anything.
  void give_back_all() const;

 private:
  // A tensor of the keys or values of one layer.
  struct Cache {
    char* begin;
    size_t slot_bytes;
    int32_t n_slots;  // 1 where all share it
    char* slot(int32_t i) const { return begin + slot_bytes * static_cast<size_t>(i); }
    char* end() const { return slot(n_slots); }
  };

  void note(const ggml_tensor& node);
  bool is_empty(int32_t slot) const;
  bool are_empty() const;

  GraphKernels* const kernels_;
  bool is_finding_ = false;
  llama_memory_t memory_ = nullptr;
  int32_t n_slots_ = 0;
  std::vector<Cache> caches_;
};

}  // namespace corosrv
