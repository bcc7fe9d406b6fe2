// What each slot does, for whoever asks: shown without waiting for a step.
#pragma once

#include <vector>

#include "base/thread_annotations.h"
#include "loop/scheduler.h"
#include "loop/sequence.h"
#include "loop/slot_status.h"

namespace corosrv {

// The decode thread writes, any thread reads. A slot shows its last sequence until it gets another; one that was moved
// to another slot, to close a gap, stays to be seen where it was, and is no longer busy there.
class SlotBoard {
 public:
  explicit SlotBoard(int32_t slots);

  // Decode thread: what runs now. Costs in proportion to that, whatever the number of slots.
  void show(Scheduler& scheduler);
  // Decode thread: the end of one that had a slot.
  void show_end(const Sequence& sequence);

  // Any thread: every slot, by its number.
  std::vector<SlotStatus> read();

 private:
  Mutex mutex_;
  std::vector<SlotStatus> slots_ GUARDED_BY(mutex_);
  std::vector<int32_t> busy_;  // the decode thread's own: those that show so
};

}  // namespace corosrv
