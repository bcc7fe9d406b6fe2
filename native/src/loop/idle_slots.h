// Which slots have stood idle long enough for their memory to be given back; knows no backend, no clock and no thread.
#pragma once

#include <cstdint>
#include <vector>

#include "loop/scheduler.h"

namespace corosrv {

// Only the decode thread calls it, and passes the time in.
class IdleSlots {
 public:
  // `idle_s`: seconds for which a slot keeps its memory after its last use.
  IdleSlots(int32_t slots, double idle_s);

  // Notes which slots are in use. Costs in proportion to their number.
  void look(Scheduler& scheduler, Clock::time_point now);
  // `slot` was used beside what runs.
  void use(int32_t slot, Clock::time_point now) { slots_[static_cast<size_t>(slot)].last_use = now; }
  // All of them were.
  void use_all(Clock::time_point now);

  // A slot whose memory is to be given back now, once after each use; -1: none.
  int32_t take_due(Clock::time_point now);
  // No slot has memory that is still to be given back, and none is in use.
  bool is_at_rest() const;
  // For how long a loop without work may wait, if nothing else wakes it: until all idle slots are due, so that it wakes
  // once for all of them; negative: for ever.
  Clock::duration patience(Clock::time_point now) const;

 private:
  static constexpr auto kGivenBack = Clock::time_point::min();

  struct Slot {
    Clock::time_point last_use = kGivenBack;
    bool is_in_use = false;
    bool is_idle() const { return !is_in_use && last_use != kGivenBack; }
  };

  Clock::duration idle_;
  std::vector<Slot> slots_;
};

}  // namespace corosrv
