// Time that passes only where the world says so, in a program of one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "model/types.h"

namespace corosrv {

// Stands in for the clock of this program and for its waits: virtual_time.cpp takes the place of clock_gettime() and of
// the waits of condition variables. Whoever waits runs the next event instead, which may be what it waits for.
class VirtualTime {
 public:
  VirtualTime() : outer_(current_) { current_ = this; }
  ~VirtualTime() { current_ = outer_; }
  VirtualTime(const VirtualTime&) = delete;
  VirtualTime& operator=(const VirtualTime&) = delete;

  // Called before each event that a waiting thread runs.
  std::function<void()> on_wait = [] {};

  Clock::time_point now() const { return now_; }
  double now_s() const { return seconds(now_ - Clock::time_point()); }

  // Runs `event` after so long; those of one time in the order in which they came.
  void after(double delay_s, std::function<void()> event) {
    events_.push({now_ + of(delay_s), n_events_++, std::move(event)});
  }
  // Lets so much time pass, with all events that fall into it.
  void pass(double duration_s) {
    const auto until = now_ + of(duration_s);
    while (!events_.empty() && events_.top().time <= until) run_next();
    now_ = until;
  }

  // The one that was made last, or null.
  static VirtualTime* current() { return current_; }
  // Runs the next event, or lets the time pass up to `until` if that comes first. Returns whether it came first.
  bool wait(Clock::time_point until) {
    on_wait();
    if (events_.empty() && until == Clock::time_point::max()) return false;  // on_wait() has seen to it
    if (!events_.empty() && events_.top().time <= until) {
      run_next();
      return false;
    }
    now_ = until;
    return true;
  }

 private:
  struct Event {
    Clock::time_point time;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Event& other) const { return std::tie(other.time, other.number) < std::tie(time, number); }
  };

  static Clock::duration of(double duration_s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(duration_s));
  }

  void run_next() {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    event.run();
  }

  inline static VirtualTime* current_ = nullptr;
  VirtualTime* const outer_;
  Clock::time_point now_ = Clock::time_point() + std::chrono::hours(1);
  uint64_t n_events_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace corosrv
