#include <thread>
#include <vector>

#include "check.h"
#include "kernels/spin_barrier.h"

namespace corosrv {
namespace {

TEST("nobody passes the barrier before all have come, round after round") {
  constexpr int kThreads = 3, kRounds = 300;
  SpinBarrier barrier;
  int written[kThreads] = {};  // by each thread its own; read by all
  std::atomic<int> n_wrong{0};

  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 1; round <= kRounds; ++round) {
        written[thread] = round;
        barrier.wait(kThreads);
        for (const int seen : written) n_wrong += seen != round;
        barrier.wait(kThreads);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  CHECK_EQ(n_wrong.load(), 0);
}

TEST("the number of threads may change from round to round") {
  SpinBarrier barrier;

  barrier.wait(1);
  std::thread other([&] { barrier.wait(2); });
  barrier.wait(2);
  other.join();
  barrier.wait(1);
}

}  // namespace
}  // namespace corosrv
