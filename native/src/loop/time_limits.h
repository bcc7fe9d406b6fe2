// Who has waited too long, or has passed its deadline, and when to look for them; knows no clock and no thread.
#pragma once

#include <algorithm>

#include "loop/scheduler.h"

namespace corosrv {

// Only the decode thread calls it, and passes the time in.
class TimeLimits {
 public:
  // `queue_s`: seconds that a task may wait for its first slot. `stall_s`: seconds that a reader may be full. 0: as
  // long as it takes.
  TimeLimits(double queue_s, double stall_s) : queue_s_(queue_s), stall_s_(stall_s) {}

  // A task with this deadline is about to be taken up.
  void add(Clock::time_point deadline) { next_deadline_ = std::min(next_deadline_, deadline); }

  // For how long the loop may wait for something to do, if nothing else wakes it: until the first sequence is overdue
  // or has its deadline; not at all while there is work; negative: for ever.
  Clock::duration patience(Scheduler& scheduler, Clock::time_point now);

  // Ends those whose deadline has passed. Returns false if none can have.
  bool end_expired(Scheduler& scheduler, Clock::time_point now);

  // It is time to look for who is overdue; call end_overdue() if so. After a pause of the whole process those who read
  // get a moment to do so: the time that passed was not theirs.
  bool is_look_due(Clock::time_point now);

  // Ends those that have waited too long: for a first slot, or for a reader that nobody reads.
  void end_overdue(Scheduler& scheduler, Clock::time_point now) const;

 private:
  Clock::time_point overdue_at(const Sequence& sequence) const;

  double queue_s_;
  double stall_s_;
  Clock::time_point passed_;                                    // when the last pass asked for what is overdue
  Clock::time_point awaited_ = Clock::time_point::max();        // when the next one is meant to do so
  bool has_grace_ = false;                                      // it came late, as after a pause, and blames nobody yet
  Clock::time_point next_look_;                                 // for what is overdue
  Clock::time_point next_deadline_ = Clock::time_point::max();  // of all sequences, or sooner
};

}  // namespace corosrv
