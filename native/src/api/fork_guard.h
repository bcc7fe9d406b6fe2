// Tells whether this process is still the one that made a handle.
#pragma once

#include <pthread.h>

#include <atomic>

namespace corosrv {

// Counts the forks between this process and the one that loaded the library; a handle remembers the count it was made
// at. Cheaper than getpid(), which is a system call.
class ForkGuard {
 public:
  bool is_same_process() const { return made_at_ == generation(); }

 private:
  static int generation() {
    static std::atomic<int>& forks = [&]() -> std::atomic<int>& {
      pthread_atfork(nullptr, nullptr, [] { ++counter(); });
      return counter();
    }();
    return forks;
  }
  static std::atomic<int>& counter() {
    static std::atomic<int> forks{0};
    return forks;
  }

  const int made_at_ = generation();
};

}  // namespace corosrv
