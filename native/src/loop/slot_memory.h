// What the last sequence of each slot left: it lies in the prefix cache, and is found again by its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "handover/slot_request.h"
#include "loop/prefix_cache.h"
#include "loop/sequence.h"
#include "model/backend.h"

namespace corosrv {

// Used by the decode thread alone. Nothing is copied but tokens: snapshots are shared with the cache, which may let go
// of them at any time; a slot then holds nothing.
class SlotMemory {
 public:
  // `backend` and `cache` outlive this.
  SlotMemory(Backend& backend, PrefixCache& cache, int32_t slots);

  // The end of one that had a slot, after the cache has taken in what it left, if anything.
  void note(const Sequence& sequence);
  // Forgets what all slots held.
  void clear() { left_.assign(left_.size(), {}); }

  // Does it, and answers. The request's slot is one that there is, and nothing runs in it.
  void run(SlotRequest& request);

 private:
  struct Left {
    std::vector<Token> tokens;
    SharingScope scope;
  };

  Status act(SlotRequest& request);
  Status save(SlotRequest& request, const Left& left);
  Status restore(SlotRequest& request, Left& left);
  Status erase(SlotRequest& request, Left& left);

  Backend& backend_;
  PrefixCache& cache_;
  std::vector<Left> left_;  // by slot
};

}  // namespace corosrv
