// A barrier for a few threads that wait for each other for less than a microsecond.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace corosrv {

// For threads that run at the same time and arrive nearly together: they spin, which costs less than a sleep and a
// wake-up. Reusable; allocates nothing.
class SpinBarrier {
 public:
  // Waits until `n_threads` threads have called it; all pass the same number. Writes before the call are visible to all
  // threads after it.
  void wait(int n_threads) {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    // The last to arrive acquires what the others released here, and releases it all with the new round.
    if (n_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads) {
      n_arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    // Acquire pairs with that release.
    for (int turn = 0; round_.load(std::memory_order_acquire) == round; ++turn) pause(turn);
  }

 private:
  // Pauses; gives up the core after a while, because with more threads than cores the last one may need it.
  static void pause(int turn) {
    if (turn > 2000) {
      std::this_thread::yield();
    } else {
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
  }

  alignas(64) std::atomic<int> n_arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace corosrv
