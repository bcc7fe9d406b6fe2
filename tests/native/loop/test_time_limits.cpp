#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/tasks.h"
#include "loop/time_limits.h"

namespace corosrv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kNever = Clock::time_point::max();

// A scheduler of one slot whose sequences are driven by hand, from a time that is passed in.
class Driven {
 public:
  explicit Driven(double queue_s = 0, double stall_s = 0) : limits(queue_s, stall_s) {
    limits.is_look_due(start);  // the first pass
  }

  Client add(Clock::time_point deadline = kNever) {
    Task task = make_task('p');
    task.deadline = deadline;
    limits.add(deadline);
    const auto reader = make_reader();
    scheduler.add(
        std::make_unique<Sequence>(Submission{std::move(task), reader, start}, vocabulary_, 1000, signals_, stats_));
    return Client(reader);
  }

  // Its code, once it has ended.
  static std::string code(Client& client) {
    client.take();
    return client.answer().finish == Finish::kUnfinished ? "goes on" : client.answer().code;
  }

 private:
  const ByteVocabulary vocabulary_;
  Signals signals_;
  LoopStats stats_;

 public:
  const Clock::time_point start = Clock::now();
  Scheduler scheduler{1, 10};
  TimeLimits limits;
};

TEST("a loop without anything to do may wait for ever") {
  Driven driven;

  CHECK(driven.limits.patience(driven.scheduler, driven.start) < Clock::duration::zero());
}

TEST("a loop with something to compute does not wait") {
  Driven driven;
  driven.add(driven.start + seconds(1));

  CHECK(driven.limits.patience(driven.scheduler, driven.start) == Clock::duration::zero());
}

TEST("whose deadline passes in the queue ends as never begun, and whoever runs as incomplete") {
  Driven driven;
  Client runs = driven.add(driven.start + seconds(1));
  driven.scheduler.admit(driven.start);
  Client waits = driven.add(driven.start + seconds(1));

  CHECK(!driven.limits.end_expired(driven.scheduler, driven.start + milliseconds(999)));
  CHECK_EQ(Driven::code(waits), "goes on");
  CHECK(driven.limits.end_expired(driven.scheduler, driven.start + seconds(1)));

  CHECK_EQ(Driven::code(runs), kDeadlineExceeded);
  CHECK_EQ(Driven::code(waits), kQueueTimeout);
}

TEST("a deadline that has not passed is looked at again when it does") {
  Driven driven;
  driven.add(driven.start + seconds(1));
  Client later = driven.add(driven.start + seconds(2));
  driven.limits.end_expired(driven.scheduler, driven.start + seconds(1));

  CHECK(!driven.limits.end_expired(driven.scheduler, driven.start + milliseconds(1999)));
  CHECK(driven.limits.end_expired(driven.scheduler, driven.start + seconds(2)));
  CHECK_EQ(Driven::code(later), kQueueTimeout);
}

TEST("who waits for a first slot is overdue after the limit, and who has one is not") {
  Driven driven(5.0);
  Client runs = driven.add();
  driven.scheduler.admit(driven.start);
  Client waits = driven.add();

  driven.limits.end_overdue(driven.scheduler, driven.start + milliseconds(4999));
  CHECK_EQ(Driven::code(waits), "goes on");
  driven.limits.end_overdue(driven.scheduler, driven.start + seconds(5));

  CHECK_EQ(Driven::code(waits), kQueueTimeout);
  CHECK_EQ(Driven::code(runs), "goes on");
}

TEST("a look for who is overdue comes four times a second at the most") {
  Driven driven;
  driven.limits.patience(driven.scheduler, driven.start);

  CHECK(!driven.limits.is_look_due(driven.start + milliseconds(249)));
  CHECK(driven.limits.is_look_due(driven.start + milliseconds(250)));
}

TEST("after a pause of the process nobody is blamed for two seconds, once") {
  Driven driven;
  driven.add();
  driven.limits.patience(driven.scheduler, driven.start);  // there is work: the next pass is meant for now

  CHECK(!driven.limits.is_look_due(driven.start + seconds(60)));
  driven.limits.patience(driven.scheduler, driven.start + seconds(60));
  CHECK(!driven.limits.is_look_due(driven.start + milliseconds(61999)));
  CHECK(driven.limits.is_look_due(driven.start + seconds(62)));
}

}  // namespace
}  // namespace corosrv
