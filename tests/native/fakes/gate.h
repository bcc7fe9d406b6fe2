// Where a test holds a thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "waiting.h"

namespace corosrv {

// Holds a thread at a point until the test has seen it there and lets it go.
class Gate {
 public:
  // The thread that is held: waits while the gate is shut.
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (n_let_through_ >= 0 && n_let_through_-- == 0) is_shut_ = true;
    ++n_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !is_shut_; });
    --n_arrived_;
  }
  void shut() { shut_after(0); }
  // Lets so many through before.
  void shut_after(int n_passes) {
    std::lock_guard<std::mutex> lock(mutex_);
    n_let_through_ = n_passes;
  }
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_shut_ = false;
    n_let_through_ = -1;
    changed_.notify_all();
  }
  // The test: true once somebody stands at the shut gate.
  bool wait_until_held() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(kPatience);
    return changed_.wait_until(lock, deadline, [this] { return is_shut_ && n_arrived_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_shut_ = false;
  int n_arrived_ = 0;
  int n_let_through_ = -1;  // until it shuts; -1: it stays open
};

}  // namespace corosrv
