// How often something ends, and when there will be room because of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "model/types.h"

namespace corosrv {

// Counts ends against the time in which there was something to end: an average of which the last ten seconds count
// most, or as many as the last end took. Knows no clock.
class EndRate {
 public:
  // Time has passed until now, in which something was under way, or nothing.
  void pass(Clock::time_point now, bool was_busy) {
    const double passed_s = std::max(seconds(now - last_), 0.0);
    last_ = now;
    if (!was_busy) return;
    const double kept = n_ended_ > 1 ? std::max(std::exp(-passed_s / kMemoryS), 1 / n_ended_) : 1;
    n_ended_ *= kept;
    busy_s_ = busy_s_ * kept + passed_s;
  }
  void add(size_t n_ended) { n_ended_ += static_cast<double>(n_ended); }

  // Seconds in which one ends. Before any has, the next one is expected after as long as it has been.
  double seconds_of_one() const { return busy_s_ / std::max(n_ended_, 1.0); }

 private:
  static constexpr double kMemoryS = 10;

  Clock::time_point last_;
  double n_ended_ = 0;
  double busy_s_ = 0;
};

// When there is room for those that were refused: whoever is refused later comes later.
class RoomForecast {
 public:
  // Seconds until so many have ended that `n_wanted` more have room, `n_excess` in all, and those have it that were
  // refused before. Counts on their coming then.
  double next(size_t n_excess, size_t n_wanted, double seconds_of_one, Clock::time_point now) {
    const double before_s = std::max(seconds(promised_ - now), 0.0) + static_cast<double>(n_wanted) * seconds_of_one;
    const double after_s = std::min(std::max(before_s, static_cast<double>(n_excess) * seconds_of_one), kMostS);
    promised_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(after_s));
    return after_s;
  }

 private:
  static constexpr double kMostS = 120;

  Clock::time_point promised_;
};

}  // namespace corosrv
