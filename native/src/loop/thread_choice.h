// How many threads compute a step.
#pragma once

#include <algorithm>
#include <cstdint>

namespace corosrv {

// All of them, until fewer are faster: threads that compute together wait for each other many times in a step, and the
// one whose processor another program uses holds all of them up.
//
// A trial computes steps in turn with the number in use and with another one, and takes the faster. While all threads
// are in use, and no step takes longer than it should, trials become rare, and one in which the other number is clearly
// slower or faster ends after one step or four.
class ThreadChoice {
 public:
  // `most`: threads that the operator allows.
  explicit ThreadChoice(int32_t most) : most_(std::max(most, 1)), used_(most_) {}

  // Returns the number for the next step.
  int32_t threads() const { return is_tried_now() ? tried_ : used_; }

  // Learns from a step that took `step_s` instead of `expected_s`; 0: nobody knew what to expect.
  void observe(double step_s, double expected_s) {
    if (most_ == 1 || expected_s <= 0 || step_s <= 0) return;
    const double part = std::min(step_s / expected_s, kMostTimes);
    if (n_tried_ < 0) {
      waited_s_ += step_s;
      wait(part);
    } else {
      compare(part);
    }
  }

 private:
  // Steps between two trials. While fewer threads are in use, times how much slower more of them were.
  static constexpr int32_t kFirstWait = 8;
  static constexpr double kFirstWaitS = 1;  // or so many seconds, where steps are long
  static constexpr int32_t kLeastWait = 32;
  static constexpr int32_t kMostWait = 4096;
  static constexpr int32_t kMostWaitBelow = 64;

  static constexpr int32_t kNear = 8;          // the first trial leaves out one thread of so many
  static constexpr int32_t kTrial = 16;        // steps of a trial
  static constexpr double kTooSlow = 2;        // times as slow: one step is enough; as fast: four are
  static constexpr double kClearly = 1.25;     // times as slow: four are
  static constexpr double kFaster = 0.92;      // of the time in use: worth a change
  static constexpr double kSlow = 1.3;         // times what was expected, in the mean: look at once
  static constexpr double kRecent = 1.0 / 16;  // the weight of one step in that mean
  static constexpr double kMostTimes = 8;      // what one step counts for, at most

  // Tried, in use, in use, tried: what changes from step to step falls on both alike.
  bool is_tried_now() const { return n_tried_ >= 0 && (n_tried_ % 4 == 0 || n_tried_ % 4 == 3); }

  int32_t fewer() const { return std::max(1, used_ - std::max(1, used_ / reach_)); }
  int32_t more() const { return std::min(most_, used_ + std::max(1, used_ / reach_)); }

  void wait(double part) {
    mean_ += kRecent * (part - mean_);
    ++n_waited_;
    const bool is_first = wait_ == kFirstWait;
    if (n_waited_ < (mean_ > kSlow ? std::min(kLeastWait, wait_) : wait_) && !(is_first && waited_s_ >= kFirstWaitS)) {
      return;
    }
    const bool tries_more = used_ == 1 || (used_ < most_ && !goes_down_);
    tried_ = tries_more ? more() : fewer();
    n_tried_ = 0;
    used_parts_ = tried_parts_ = 0;
  }

  void compare(double part) {
    (is_tried_now() ? tried_parts_ : used_parts_) += part;
    ++n_tried_;
    if (n_tried_ == 1 && part > kTooSlow * mean_) return end(false, part / mean_);
    if (n_tried_ % 4 != 0) return;
    const double slower = used_parts_ > 0 ? tried_parts_ / used_parts_ : 1;
    if (slower > kClearly || slower < 1 / kTooSlow || n_tried_ == kTrial) end(slower < kFaster, slower);
  }

  // After a change the next trial goes the same way, and soon; else it goes the other way or further, and later each
  // time.
  void end(bool is_faster, double slower) {
    if (is_faster) {
      goes_down_ = tried_ < used_;
      used_ = tried_;
      wait_ = kLeastWait;
    } else {
      goes_down_ = !goes_down_;
      if (goes_down_ || used_ == most_) reach_ = reach_ > 2 ? reach_ / 2 : kNear;
      const double most = used_ < most_ ? std::clamp(slower, 1.0, kMostTimes) * kMostWaitBelow : kMostWait;
      wait_ = std::min(2 * wait_, static_cast<int32_t>(most));
    }
    n_tried_ = -1;
    n_waited_ = 0;
    mean_ = 1;
  }

  const int32_t most_;
  int32_t used_;
  int32_t tried_ = 0;
  bool goes_down_ = true;  // the next trial, where both ways are open
  int32_t reach_ = kNear;  // how far it goes: one of so many threads more or fewer
  int32_t wait_ = kFirstWait;
  int32_t n_waited_ = 0;  // steps since the last trial
  double waited_s_ = 0;   // since the start, without the steps of trials
  int32_t n_tried_ = -1;  // steps of the trial; -1: there is none
  double mean_ = 1;       // of what steps took, as a part of what they should have
  double used_parts_ = 0;
  double tried_parts_ = 0;
};

}  // namespace corosrv
