// A process beside the loop: it stands still during steps, and at no other time.
#include <thread>

#include "check.h"
#include "fakes/child.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/side_process.h"

namespace corosrv {
namespace {

using std::chrono::milliseconds;

TEST("a side process stands still from a step's beginning on, and goes on when there are no steps") {
  const Child child;
  SideProcess side;
  side.set(child.open(), {0.5});
  CHECK(child.goes_on());

  side.suspend();
  CHECK(child.becomes_stopped());
  side.release();
  CHECK(child.goes_on());
}

TEST("a side process runs for its share of the step's time") {
  const Child child;
  SideProcess side;
  side.set(child.open(), {0.05});
  side.suspend();
  REQUIRE(child.becomes_stopped());

  const auto begin = Clock::now();
  std::thread step([&] { side.run_after(milliseconds(kPatience), 1, true, 1); });
  const bool has_run = child.goes_on();
  step.join();
  const auto took = Clock::now() - begin;

  CHECK(has_run);
  CHECK(took >= milliseconds(kPatience / 20));
  CHECK(took < milliseconds(kPatience));
  CHECK(child.becomes_stopped());
}

TEST("the time for which a side process is stopped is counted, and no other") {
  const Child child;
  SideProcess side;
  side.set(child.open(), {0.5});
  CHECK(side.held() == Clock::duration::zero());

  const auto begin = Clock::now();
  side.suspend();
  const auto suspended = Clock::now();
  REQUIRE(eventually([&] { return Clock::now() - suspended > milliseconds(50); }));
  const auto held = side.held();
  CHECK(held >= milliseconds(50));

  side.run_after(milliseconds(1000), 1, true, 1);
  side.release();
  const auto took = Clock::now() - begin;
  CHECK(side.held() >= held);
  CHECK(side.held() <= took - milliseconds(450));
}

TEST("a side process without a share of its own counts as one more sequence, and gets more while it waits") {
  const Child child;
  SideProcess side;
  side.set(child.open(), {0, 10.0, 0.02});
  side.suspend();

  const auto begin = Clock::now();
  side.run_after(milliseconds(100), 4, true, 1);
  const auto first = Clock::now() - begin;
  CHECK(first >= milliseconds(25));
  REQUIRE(eventually([&] { return Clock::now() - begin > milliseconds(100); }));  // more than four times the usual

  const auto later = Clock::now();
  side.run_after(milliseconds(100), 4, true, 1);
  CHECK(Clock::now() - later >= milliseconds(100));
}

TEST("a side process that is replaced goes on") {
  const Child first;
  const Child second;
  SideProcess side;
  side.set(first.open(), {0.5});
  side.suspend();
  REQUIRE(first.becomes_stopped());

  side.set(second.open(), {0.5});
  side.suspend();
  CHECK(first.goes_on());
  CHECK(second.becomes_stopped());

  side.set(-1, {0.5});
  side.suspend();
  CHECK(second.goes_on());
}

TEST("a side process that has ended takes no time") {
  Child child;
  SideProcess side;
  side.set(child.open(), {1.0});
  side.suspend();
  child.end();

  const auto begin = Clock::now();
  side.run_after(milliseconds(kPatience), 1, true, 1);
  CHECK(Clock::now() - begin < milliseconds(kPatience));
}

TEST("the loop stops a side process while it computes, and lets it go on when nothing runs") {
  const Child child;
  RunningLoop loop;
  loop.backend.gate.shut();
  loop.start();
  loop.set_side_process(child.open(), {0.1});
  const auto client = loop.submit(make_task('a', 4, 8));
  REQUIRE(loop.backend.gate.wait_until_held());
  CHECK(child.becomes_stopped());

  loop.backend.gate.open();
  CHECK(client->finish());
  CHECK(child.goes_on());
}

TEST("a side process runs between two steps") {
  const Child child;
  RunningLoop loop;
  loop.backend.gate.shut();
  loop.start();
  loop.set_side_process(child.open(), {10.0});
  const auto client = loop.submit(make_task('a', 4, 3));
  REQUIRE(loop.backend.gate.wait_until_held());
  REQUIRE(child.becomes_stopped());
  const auto begin = Clock::now();
  REQUIRE(eventually([&] { return Clock::now() - begin > milliseconds(100); }));  // so long is the step

  loop.backend.gate.open();
  CHECK(child.goes_on());
  CHECK_EQ(loop.stats().running, 1);
  CHECK(client->finish());
}

TEST("a loop that ends lets a side process go on") {
  const Child child;
  {
    RunningLoop loop;
    loop.backend.gate.shut();
    loop.start();
    loop.set_side_process(child.open(), {0.1});
    const auto client = loop.submit(make_task('a', 4, 8));
    REQUIRE(loop.backend.gate.wait_until_held());
    REQUIRE(child.becomes_stopped());
    loop.close("the test is over");
    CHECK(child.goes_on());
  }
  CHECK(child.goes_on());
}

}  // namespace
}  // namespace corosrv
