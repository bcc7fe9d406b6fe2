#include "loop/time_limits.h"

#include <chrono>
#include <utility>

namespace corosrv {

namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(250);  // at the soonest, for what is overdue

constexpr auto kDeadlineInterval = std::chrono::milliseconds(20);  // at the soonest, for deadlines

constexpr auto kLate = std::chrono::seconds(1);   // longer than a step takes, but of slow models
constexpr auto kGrace = std::chrono::seconds(2);  // for readers to be read after a pause of the process

// Never, where the limit is 0.
Clock::time_point after(Clock::time_point since, double limit_s) {
  if (limit_s <= 0) return Clock::time_point::max();
  return since + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
}

}  // namespace

Clock::time_point TimeLimits::overdue_at(const Sequence& sequence) const {
  if (sequence.is_paused()) return after(sequence.paused(), stall_s_);
  if (!sequence.has_had_slot()) return after(sequence.submitted(), queue_s_);
  return Clock::time_point::max();
}

Clock::duration TimeLimits::patience(Scheduler& scheduler, Clock::time_point now) {
  if (scheduler.has_work()) {
    awaited_ = passed_;
    return Clock::duration::zero();
  }
  auto first = Clock::time_point::max();
  scheduler.for_each([&](const Sequence& sequence) { first = std::min(first, overdue_at(sequence)); });
  if (first != Clock::time_point::max()) first = std::max(first, next_look_);
  first = std::min(first, next_deadline_);
  awaited_ = first == Clock::time_point::max() ? first : std::max(first, now);
  return first == Clock::time_point::max() ? Clock::duration(-1) : awaited_ - now;
}

// What waits has cost nothing yet, and may be asked for again; what has begun has an answer that is not whole.
bool TimeLimits::end_expired(Scheduler& scheduler, Clock::time_point now) {
  if (now < next_deadline_) return false;
  next_deadline_ = Clock::time_point::max();
  scheduler.for_each([&](Sequence& sequence) {
    if (now < sequence.deadline()) {
      next_deadline_ = std::min(next_deadline_, std::max(sequence.deadline(), now + kDeadlineInterval));
    } else if (sequence.has_had_slot()) {
      sequence.finish(Finish::kError, "the time of the request was over before its answer was complete",
                      kDeadlineExceeded);
    } else {
      sequence.finish(Finish::kError, "the time of the request was over before a slot was free; none of it was run",
                      kQueueTimeout);
    }
  });
  return true;
}

bool TimeLimits::is_look_due(Clock::time_point now) {
  passed_ = now;
  // Once until somebody was looked at: slow steps are no pause, and must not put it off for ever.
  if (now - kLate > awaited_ && !std::exchange(has_grace_, true)) next_look_ = now + kGrace;
  if (now < next_look_) return false;
  next_look_ = now + kLookInterval;
  has_grace_ = false;
  return true;
}

void TimeLimits::end_overdue(Scheduler& scheduler, Clock::time_point now) const {
  scheduler.for_each([&](Sequence& sequence) {
    if (now < overdue_at(sequence)) return;
    if (sequence.is_paused()) {
      sequence.finish(Finish::kError, "the answer was read too slowly", kClientTooSlow);
    } else {
      sequence.finish(Finish::kError, "the request waited for a slot for too long; try again later", kQueueTimeout);
    }
  });
}

}  // namespace corosrv
