// Where a sequence begins: from what the cache holds, from what a running sequence is about to hold, or from nothing.
#pragma once

#include <cstdint>

#include "loop/prefix_cache.h"
#include "loop/scheduler.h"
#include "loop/sequence.h"
#include "loop/slot_memory.h"
#include "model/backend.h"

namespace corosrv {

// Moves KV cache between slots and the prefix cache, but for what stays in its slot; see SlotMemory. Used by the decode
// thread alone.
//
// Everything goes through snapshots, also from one running sequence to another: libllama's own copy from stream to
// stream (llama_memory_seq_cp) copies a stream's whole buffer, 94 MB and 8 ms for 4,096 tokens of SmolLM2, where a
// snapshot of 400 tokens takes 0.7 ms to save and 0.9 ms to load, and serves all that wait for it.
class PrefixSharing {
 public:
  // All of these outlive this. A cache without room shares nothing.
  PrefixSharing(Backend& backend, PrefixCache& cache, SlotMemory& memory);

  // Lets those that are kStarting begin, except where waiting for a running sequence saves more: that one is to compute
  // a longer prefix of theirs than the cache holds.
  // Before that it copies those that have come to where others begin.
  void begin(Scheduler& scheduler);

  // Saves what the sequence has computed; it still has its slot. Returns whether it is saved.
  bool keep(const Sequence& sequence);

  // Moves running sequences to lower slots: libllama computes a batch in as many parts as its slots have gaps.
  void close_gaps(Scheduler& scheduler);

 private:
  void find_leader(const Scheduler& scheduler, Sequence& sequence);
  void begin(Sequence& sequence);
  bool begin_in_slot(Sequence& sequence);
  // Of a model with a window: the sequence is to be copied where others have so much in common with it.
  void leave_copy(Sequence& sequence, size_t n_lost, size_t n_known) const;
  bool copy(const Sequence& sequence, int32_t slot);
  bool may_share(const Sequence& sequence) const;

  Backend& backend_;
  PrefixCache& cache_;
  SlotMemory& memory_;
};

}  // namespace corosrv
