#include "loop/slot_board.h"

namespace corosrv {

namespace {

size_t place(const Sequence& sequence) { return static_cast<size_t>(sequence.slot()); }

}  // namespace

SlotBoard::SlotBoard(int32_t slots) : slots_(static_cast<size_t>(slots)) {}

void SlotBoard::show(Scheduler& scheduler) {
  MutexLock lock(mutex_);
  for (const int32_t slot : busy_) slots_[static_cast<size_t>(slot)].is_busy = false;
  busy_.clear();
  scheduler.for_each_running([this](const Sequence& sequence) REQUIRES(mutex_) {
    slots_[place(sequence)] = sequence.describe();
    busy_.push_back(sequence.slot());
  });
}

void SlotBoard::show_end(const Sequence& sequence) {
  MutexLock lock(mutex_);
  slots_[place(sequence)] = sequence.describe();
}

std::vector<SlotStatus> SlotBoard::read() {
  MutexLock lock(mutex_);
  return slots_;
}

}  // namespace corosrv
