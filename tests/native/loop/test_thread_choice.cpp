#include <functional>

#include "check.h"
#include "loop/thread_choice.h"

namespace corosrv {
namespace {

// Returns the time of a step with so many threads, as a part of what is expected.
using StepTime = std::function<double(int32_t n_threads)>;

// Runs steps; returns how much longer they took together than with the number that is fastest.
double run(ThreadChoice& choice, int n_steps, const StepTime& step_time, int32_t best) {
  double sum = 0;
  for (int i = 0; i < n_steps; ++i) {
    const double part = step_time(choice.threads());
    sum += part;
    choice.observe(part, 1);
  }
  return sum / (n_steps * step_time(best));
}

double alone(int32_t n_threads) { return n_threads == 1 ? 1.6 : 1.0; }
double beside_one(int32_t n_threads) { return n_threads == 1 ? 1.0 : 1.9; }

TEST("all threads compute while that is fastest, and trials cost less than two steps in a thousand") {
  ThreadChoice choice(2);
  CHECK_EQ(choice.threads(), 2);
  run(choice, 4000, alone, 2);

  CHECK(run(choice, 20000, alone, 2) < 1.002);
  CHECK_EQ(choice.threads(), 2);
}

TEST("fewer threads compute when they are faster, and all again when that is over") {
  ThreadChoice choice(2);
  run(choice, 3000, alone, 2);
  CHECK_EQ(choice.threads(), 2);

  run(choice, 100, beside_one, 1);  // as a step takes longer than it should, nobody waits for the next trial
  CHECK(run(choice, 1000, beside_one, 1) < 1.06);

  run(choice, 300, alone, 2);
  CHECK(run(choice, 1000, alone, 2) < 1.02);
}

TEST("a machine that is busy from the beginning is found out in the first steps") {
  ThreadChoice choice(2);
  run(choice, 24, beside_one, 1);
  CHECK_EQ(choice.threads(), 1);
}

TEST("where steps take seconds from the beginning, the first few are enough") {
  const StepTime beside_two = [](int32_t n_threads) { return n_threads == 1 ? 0.02 : 1.5; };
  ThreadChoice choice(2);
  run(choice, 5, beside_two, 1);
  CHECK_EQ(choice.threads(), 1);
}

TEST("of many threads as many compute as there are processors free") {
  const StepTime beside_four = [](int32_t n_threads) { return 16.0 / n_threads * (n_threads > 12 ? 2.0 : 1.0); };
  ThreadChoice choice(16);
  run(choice, 2000, beside_four, 12);
  CHECK(run(choice, 4000, beside_four, 12) < 1.1);
}

TEST("what differs by less than a step's noise changes nothing") {
  ThreadChoice choice(4);
  int n = 0;
  const StepTime noisy = [&n](int32_t n_threads) { return (n_threads == 4 ? 1.0 : 0.97) + 0.02 * (++n % 5); };
  for (int i = 0; i < 50; ++i) {
    run(choice, 400, noisy, 4);
    CHECK(choice.threads() >= 2);
  }
}

TEST("a step that takes very long once, as when a machine sleeps, changes nothing") {
  ThreadChoice choice(2);
  for (int i = 0; i < 5000; ++i) choice.observe(i % 700 == 0 ? 1e6 : alone(choice.threads()), 1);
  run(choice, 20, alone, 2);
  CHECK_EQ(choice.threads(), 2);
}

TEST("one thread stays one, and steps of which nobody knows what to expect are no trial") {
  ThreadChoice one(1);
  run(one, 1000, beside_one, 1);
  CHECK_EQ(one.threads(), 1);

  ThreadChoice two(2);
  for (int i = 0; i < 1000; ++i) {
    CHECK_EQ(two.threads(), 2);
    two.observe(1, 0);
  }
}

}  // namespace
}  // namespace corosrv
