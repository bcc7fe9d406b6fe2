// What the last sequence of each slot left: in the slot until somebody else needs it, and in the prefix cache, where it
// is found again by its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "handover/slot_request.h"
#include "loop/prefix_cache.h"
#include "loop/sequence.h"
#include "model/backend.h"

namespace corosrv {

// A sequence that begins like what its slot still holds goes on there, and nothing is copied. The cache gets its copy
// when a sequence ends or, of a device, from which copies are slow, only when its slot is needed for something else, or
// a sequence of another slot begins like it. The cache may let go of it at any time.
//
// Used by the decode thread alone.
class SlotMemory {
 public:
  // `backend` and `cache` outlive this. `shares_cells`: slots are to hold nothing but what runs.
  SlotMemory(Backend& backend, PrefixCache& cache, int32_t slots, bool shares_cells);

  // The end of one that had a slot.
  void note(const Sequence& sequence);
  // Copies to the cache what a slot holds: these tokens. Returns whether the cache has them.
  bool keep(int32_t slot, std::vector<Token> tokens, const SharingScope& scope);

  // Of the slots that are free, the one that holds the most of those of which the sequence has all and goes on behind
  // it; -1: none.
  int32_t continued_by(const Sequence& sequence, const std::vector<int32_t>& free_slots) const;
  // How many tokens the sequence has in common with what its slot still holds.
  size_t n_in_slot(const Sequence& sequence) const;
  // The same of all slots whose content the cache has no copy of.
  size_t n_uncopied(const Sequence& sequence) const;
  // Copies the one that has most of them to the cache.
  void copy_uncopied(const Sequence& sequence);
  // The sequence takes over what its slot holds, up to `kept`.
  void take_over(int32_t slot, Extent kept);
  // Empties a slot in which nothing runs, or has not begun; the cache gets what it has no copy of.
  void release(int32_t slot);
  // Forgets what all slots held.
  void clear();

  // Does it, and answers. The request's slot is one that there is, and nothing runs in it.
  void run(SlotRequest& request);

 private:
  struct Left {
    std::vector<Token> tokens;
    SharingScope scope;
    bool is_in_slot = false;  // all of it, and nothing else
    bool is_copied = true;    // to the cache
  };

  int32_t slot_of(const Left& left) const { return static_cast<int32_t>(&left - left_.data()); }
  // As far as the slot could go on behind them.
  size_t n_in_common(const Left& left, const Sequence& sequence) const;
  const Left* most_uncopied(const Sequence& sequence) const;
  void copy(int32_t slot);

  Status act(SlotRequest& request);
  Status save(SlotRequest& request, const Left& left);
  Status restore(SlotRequest& request, Left& left);
  Status erase(SlotRequest& request, Left& left);

  Backend& backend_;
  PrefixCache& cache_;
  const bool holds_;        // slots keep what was left there
  const bool copies_late_;  // to the cache
  std::vector<Left> left_;  // by slot
};

}  // namespace corosrv
