// What happens to the memory of slots that nothing runs in.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/sharing.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/idle_slots.h"

namespace corosrv {
namespace {

using std::chrono::seconds;

// A scheduler of three slots whose sequences are driven by hand, from a time that is passed in.
class Driven {
 public:
  // Starts so many sequences, and has the slots looked at.
  void run(int n_tasks, Clock::time_point now) {
    for (int i = 0; i < n_tasks; ++i) {
      scheduler_.add(std::make_unique<Sequence>(Submission{make_task('p'), make_reader(), now}, vocabulary_, 1000,
                                                signals_, stats_));
    }
    scheduler_.admit(now);
    idle.look(scheduler_, now);
  }
  // Ends all of them.
  void end(Clock::time_point now) {
    scheduler_.for_each([](Sequence& sequence) { sequence.finish(Finish::kCancelled); });
    scheduler_.sweep();
    idle.look(scheduler_, now);
  }
  std::vector<int32_t> take_due(Clock::time_point now) {
    std::vector<int32_t> due;
    for (int32_t slot = idle.take_due(now); slot >= 0; slot = idle.take_due(now)) due.push_back(slot);
    return due;
  }

 private:
  const ByteVocabulary vocabulary_;
  Signals signals_;
  LoopStats stats_;
  Scheduler scheduler_{3, 10};

 public:
  const Clock::time_point start = Clock::now();
  IdleSlots idle{3, 60};
};

const std::vector<int32_t> kNone;

TEST("slots that were never used have nothing to give back, and nobody wakes for them") {
  Driven driven;

  CHECK_EQ(driven.take_due(driven.start + seconds(1000)), kNone);
  CHECK(driven.idle.patience(driven.start) < Clock::duration::zero());
  CHECK(driven.idle.is_at_rest());
}

TEST("a slot is given back once, when it has been idle for its time") {
  Driven driven;
  driven.run(2, driven.start);
  driven.end(driven.start + seconds(10));

  CHECK_EQ(driven.take_due(driven.start + seconds(69)), kNone);
  CHECK(!driven.idle.is_at_rest());
  CHECK_EQ(driven.take_due(driven.start + seconds(70)), (std::vector<int32_t>{0, 1}));
  CHECK(driven.idle.is_at_rest());
  CHECK_EQ(driven.take_due(driven.start + seconds(200)), kNone);
}

TEST("a slot in use is not given back, however long it is") {
  Driven driven;
  driven.run(1, driven.start);

  CHECK_EQ(driven.take_due(driven.start + seconds(1000)), kNone);
  CHECK(driven.idle.patience(driven.start) < Clock::duration::zero());
  CHECK(!driven.idle.is_at_rest());
}

TEST("a loop without work wakes once, when the slot that was used last is due") {
  Driven driven;
  driven.idle.use(0, driven.start);
  driven.idle.use(2, driven.start + seconds(5));

  CHECK(driven.idle.patience(driven.start + seconds(20)) == Clock::duration(seconds(45)));
  CHECK(driven.idle.patience(driven.start + seconds(100)) == Clock::duration::zero());
  CHECK_EQ(driven.take_due(driven.start + seconds(65)), (std::vector<int32_t>{0, 2}));
}

TEST("what touches the memory of all slots starts their time anew") {
  Driven driven;
  driven.idle.use(1, driven.start);
  CHECK_EQ(driven.take_due(driven.start + seconds(60)), (std::vector<int32_t>{1}));

  driven.idle.use_all(driven.start + seconds(100));

  CHECK_EQ(driven.take_due(driven.start + seconds(159)), kNone);
  CHECK_EQ(driven.take_due(driven.start + seconds(160)), (std::vector<int32_t>{0, 1, 2}));
}

DecodeLoop::Limits idle_for(double idle_s) {
  DecodeLoop::Limits limits = sharing(4);
  limits.idle_s = idle_s;
  return limits;
}

TEST("a loop at rest gives back the slots that were used, and sleeps") {
  RunningLoop loop(idle_for(0.01));
  loop.start();
  CHECK(loop.submit({make_task('1', 3, 5), make_task('2', 3, 5)})->finish());

  CHECK(eventually([&] { return loop.backend.given_back().size() >= 2; }));

  std::vector<int32_t> given_back = loop.backend.given_back();
  std::sort(given_back.begin(), given_back.end());
  CHECK_EQ(given_back, (std::vector<int32_t>{0, 1}));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("slots that are given back beside running ones change no text") {
  RunningLoop loop(idle_for(0));
  loop.start();
  const Task task = make_task('l', 20, 300);
  const auto running = loop.submit(task);
  for (Token name = 'a'; name < 'g'; ++name) CHECK(loop.submit(make_task(name, 5, 3))->finish());

  CHECK(running->finish());

  CHECK_EQ(running->text(), said_alone(task));
  CHECK(eventually([&] { return loop.backend.given_back().size() >= 7; }));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a loop at rest keeps no more prefixes than its model has bytes") {
  RunningLoop loop(idle_for(0.01));
  loop.backend.changeable_info().size = 2 * 108 * 2 * sizeof(Token);
  loop.start();
  for (Token name = 'a'; name < 'g'; ++name) CHECK(loop.submit(make_task(name, 101, 8))->finish());

  CHECK(eventually([&] { return loop.stats().cache_entries == 2; }));

  CHECK_EQ(loop.submit(make_task('f', 101, 8))->finish(), true);
  CHECK_EQ(loop.stats().cached_tokens, uint64_t{100});
}

}  // namespace
}  // namespace corosrv
