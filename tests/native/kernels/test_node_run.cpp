#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "kernels/node_run.h"

namespace corosrv {
namespace {

constexpr Division kRows{Division::Kind::kRows, 6, 8}, kOtherRows{Division::Kind::kRows, 3, 16},
    kColumns{Division::Kind::kColumns, 6, 8};

Access access(const std::vector<int>& memory, bool is_written, Division division = {}) {
  return {memory.data(), memory.data() + memory.size(), is_written, division};
}

void do_nothing(const Step&, int, int) {}

// Whether a step with the second access waits for one with the first.
bool waits(const Access& first, const Access& second) {
  NodeRun run;
  run.add({&do_nothing, nullptr, nullptr}, {first});
  run.add({&do_nothing, nullptr, nullptr}, {second});
  return run.from_end(1).waits;
}

TEST("a step waits where another thread may have written what it touches, or may still read what it writes") {
  const std::vector<int> one(12), other(12);
  CHECK(waits(access(one, true), access(one, false)));
  CHECK(waits(access(one, false), access(one, true)));
  CHECK(waits(access(one, true), access(one, true)));
  CHECK(waits(access(one, true, kRows), access(one, false)));
  CHECK(waits(access(one, true, kRows), access(one, false, kOtherRows)));
  CHECK(waits(access(one, true, kRows), access(one, false, kColumns)));
  CHECK(waits(access(one, true, kRows), {one.data() + 1, one.data() + 13, false, kRows}));  // they lie otherwise

  CHECK(!waits(access(one, false), access(one, false)));
  CHECK(!waits(access(one, true), access(other, true)));
  CHECK(!waits(access(one, true, kRows), access(one, false, kRows)));
  CHECK(!waits(access(one, true, kColumns), access(one, true, kColumns)));
}

TEST("a wait is for all steps before, and a step that does more waits for what that touches") {
  const std::vector<int> one(12), other(12);
  NodeRun run;
  run.add({&do_nothing, nullptr, nullptr}, {access(one, true)});
  run.add({&do_nothing, nullptr, nullptr}, {access(one, false), access(other, true)});
  CHECK(run.from_end(1).waits);
  run.add({&do_nothing, nullptr, nullptr}, {access(one, false)});
  CHECK(!run.from_end(1).waits);
  run.extend(&do_nothing, 0, access(other, false));
  CHECK(run.from_end(1).waits);
  run.clear();
  run.add({&do_nothing, nullptr, nullptr}, {access(one, true)});
  CHECK(!run.from_end(1).waits);
}

// Rows that are doubled, and their sums, which each thread takes of all rows.
struct Work {
  std::vector<int> rows = std::vector<int>(12, 1), sums = std::vector<int>(3);
};

void double_rows(const Step& step, int thread, int n_threads) {
  Work& work = *static_cast<Work*>(const_cast<void*>(step.context));
  const ThreadShare share = share_of(work.rows.size(), thread, n_threads);
  for (size_t i = share.from; i < share.to; ++i) work.rows[i] *= 2;
}

void add_up(const Step& step, int thread, int n_threads) {
  Work& work = *static_cast<Work*>(const_cast<void*>(step.context));
  const ThreadShare share = share_of(work.sums.size(), thread, n_threads);
  for (size_t i = share.from; i < share.to; ++i) work.sums[i] = std::accumulate(work.rows.begin(), work.rows.end(), 0);
}

TEST("threads see what others have computed, run after run, as many as they are") {
  Work work;
  NodeRun run;
  for (int i = 0; i < 2; ++i) {
    run.add({&double_rows, nullptr, &work}, {access(work.rows, true, kRows)});
    run.add({&double_rows, nullptr, &work}, {access(work.rows, true, kRows)});
    run.add({&add_up, nullptr, &work}, {access(work.rows, false), access(work.sums, true, kRows)});
  }
  int expected = 12;
  for (const int n_threads : {3, 1, 2, 4}) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < n_threads; ++thread) {
      threads.emplace_back([&run, thread, n_threads] { run.compute(thread, n_threads); });
    }
    for (std::thread& thread : threads) thread.join();
    expected *= 16;
    CHECK_EQ(work.sums, (std::vector<int>{expected, expected, expected}));
  }
}

}  // namespace
}  // namespace corosrv
