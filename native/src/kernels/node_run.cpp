#include "kernels/node_run.h"

#include <algorithm>

namespace corosrv {

namespace {

bool are_of_one_thread(const Access& a, const Access& b) {
  return a.begin == b.begin && a.end == b.end && a.division.kind != Division::Kind::kNone && a.division == b.division;
}

// Returns whether one thread may write what another one reads or writes.
bool is_conflict(const Access& a, const Access& b) {
  const bool overlaps = a.begin < b.end && b.begin < a.end;
  return overlaps && (a.is_written || b.is_written) && !are_of_one_thread(a, b);
}

}  // namespace

void NodeRun::clear() {
  steps_.clear();
  accesses_.clear();
}

bool NodeRun::is_in_conflict(const Access& access) const {
  return std::any_of(accesses_.begin(), accesses_.end(),
                     [&access](const Access& earlier) { return is_conflict(earlier, access); });
}

void NodeRun::add(Step step, std::initializer_list<Access> accesses) {
  step.waits =
      std::any_of(accesses.begin(), accesses.end(), [this](const Access& access) { return is_in_conflict(access); });
  if (step.waits) accesses_.clear();
  accesses_.insert(accesses_.end(), accesses);
  steps_.push_back(step);
}

void NodeRun::extend(Step::Compute compute, size_t buffer, const Access& access) {
  steps_.back().compute = compute;
  steps_.back().buffer = buffer;
  steps_.back().waits |= is_in_conflict(access);
  accesses_.push_back(access);
}

void NodeRun::compute(int thread, int n_threads) {
  for (const Step& step : steps_) {
    if (step.waits) barrier_.wait(n_threads);
    step.compute(step, thread, n_threads);
  }
}

}  // namespace corosrv
