// How long a side process may run between two steps.
#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "loop/side_share.h"

namespace corosrv {
namespace {

constexpr double kUsual = 2;
constexpr SideShare kDefault{0, 0.05, kUsual};

struct Case {
  SideShare share;
  int32_t n_running;
  bool delays_tokens;
  double waited_s;
  double step_s;
  double run_s;
};

TEST("a side process has the time that a participant has, within what a token may wait") {
  const std::vector<Case> cases = {
      // As many participants as sequences and one more, until a quarter.
      {kDefault, 1, true, 0, 0.010, 0.010},
      {kDefault, 2, true, 0, 0.010, 0.005},
      {kDefault, 4, true, 0, 0.010, 0.0025},
      {kDefault, 16, true, 0, 0.010, 0.0025},
      {kDefault, 256, true, 0, 0.010, 0.0025},
      // More while it waits, until it has as much as the step.
      {kDefault, 16, true, 2 * kUsual, 0.010, 0.00625},
      {kDefault, 16, true, 4 * kUsual, 0.010, 0.010},
      {kDefault, 16, true, 400 * kUsual, 0.010, 0.010},
      {kDefault, 1, true, 400 * kUsual, 0.010, 0.010},
      {{0, 0.05, 0}, 16, true, 400, 0.010, 0.0025},  // nobody knows how long is usual
      // The next token is there in time.
      {kDefault, 1, true, 0, 0.025, 0.025},
      {kDefault, 1, true, 0, 0.030, 0.020},
      {kDefault, 1, true, 0, 0.040, 0.010},
      {kDefault, 16, true, 4 * kUsual, 0.045, 0.005},
      // Steps alone take that long: a tenth.
      {kDefault, 1, true, 0, 0.050, 0.005},
      {kDefault, 16, true, 400 * kUsual, 0.200, 0.020},
      // Nobody waits for a token while only prompts are read.
      {kDefault, 1, false, 0, 0.200, 0.200},
      {kDefault, 16, false, 0, 0.200, 0.050},
      // A share that is set stays as it is.
      {{0.1, 0.05, kUsual}, 1, true, 0, 0.010, 0.001},
      {{0.1, 0.05, kUsual}, 16, true, 400 * kUsual, 0.200, 0.020},
      {{1.0, 0.05, kUsual}, 16, true, 0, 0.200, 0.200},
  };
  for (const Case& each : cases) {
    const double run_s = side_time(each.share, each.n_running, each.delays_tokens, each.waited_s, each.step_s);
    CHECK_EQ(std::round(run_s * 1e6), std::round(each.run_s * 1e6));
  }
}

TEST("no token comes later because of a side process than it may, or than a tenth of the step") {
  for (const int32_t n_running : {1, 2, 4, 16, 256}) {
    for (const double waited_s : {0.0, kUsual, 4 * kUsual, 400 * kUsual}) {
      for (double step_s = 0.001; step_s < 3; step_s *= 1.1) {
        const double run_s = side_time(kDefault, n_running, true, waited_s, step_s);
        CHECK(step_s + run_s <= std::max(kDefault.itl_s, 1.1 * step_s) + 1e-9);
        CHECK(run_s >= 0.1 * step_s - 1e-9);  // and it is never starved
      }
    }
  }
}

}  // namespace
}  // namespace corosrv
