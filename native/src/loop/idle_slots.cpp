#include "loop/idle_slots.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace corosrv {

IdleSlots::IdleSlots(int32_t slots, double idle_s)
    : idle_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(idle_s))),
      slots_(static_cast<size_t>(slots)) {}

void IdleSlots::look(Scheduler& scheduler, Clock::time_point now) {
  for (Slot& slot : slots_) {
    if (std::exchange(slot.is_in_use, false)) slot.last_use = now;
  }
  scheduler.for_each_running(
      [this](const Sequence& sequence) { slots_[static_cast<size_t>(sequence.slot())].is_in_use = true; });
}

void IdleSlots::use_all(Clock::time_point now) {
  for (Slot& slot : slots_) slot.last_use = now;
}

int32_t IdleSlots::take_due(Clock::time_point now) {
  const auto due = std::find_if(slots_.begin(), slots_.end(),
                                [&](const Slot& slot) { return slot.is_idle() && now - slot.last_use >= idle_; });
  if (due == slots_.end()) return -1;
  due->last_use = kGivenBack;
  return static_cast<int32_t>(due - slots_.begin());
}

bool IdleSlots::is_at_rest() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.is_in_use || slot.is_idle(); });
}

Clock::duration IdleSlots::patience(Clock::time_point now) const {
  auto last_use = kGivenBack;
  for (const Slot& slot : slots_) {
    if (slot.is_idle()) last_use = std::max(last_use, slot.last_use);
  }
  if (last_use == kGivenBack) return Clock::duration(-1);
  return std::max(last_use + idle_ - now, Clock::duration::zero());
}

}  // namespace corosrv
