#include <chrono>
#include <cmath>
#include <thread>

#include "check.h"
#include "fakes/client.h"
#include "fakes/tasks.h"
#include "handover/inbox.h"

namespace corosrv {
namespace {

std::vector<Task> make_tasks(size_t count) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < count; ++i) tasks.push_back(make_task('a'));
  return tasks;
}

TEST("submissions come out in the order in which they went in, once") {
  Inbox inbox(10);
  const auto reader = make_reader();
  for (const Token name : {'x', 'y', 'z'}) CHECK(inbox.submit({make_task(name)}, reader).is_ok());

  const Inbox::Mail mail = inbox.take(false);

  REQUIRE(mail.submissions.size() == 3);
  CHECK_EQ(mail.submissions[0].task.prompt[0], 'x');
  CHECK_EQ(mail.submissions[2].task.prompt[0], 'z');
  CHECK(mail.submissions[1].reader == reader);
  CHECK(inbox.take(true).submissions.empty());
}

TEST("a submission beyond the capacity is refused as a whole and takes nothing (I6)") {
  Inbox inbox(3);
  const auto reader = make_reader();
  CHECK(inbox.submit(make_tasks(2), reader).is_ok());

  const Status refused = inbox.submit(make_tasks(2), reader);

  CHECK_EQ(refused.code(), StatusCode::kQueueFull);
  CHECK(refused.message().find("2 of at most 3") != std::string::npos);
  CHECK_EQ(inbox.in_flight(), size_t{2});
  CHECK_EQ(inbox.refused(), uint64_t{2});
  CHECK_EQ(inbox.take(true).submissions.size(), size_t{2});
  CHECK(inbox.submit(make_tasks(1), reader).is_ok());
}

TEST("tasks that the loop has taken count until they have ended (I6)") {
  Inbox inbox(2);
  const auto reader = make_reader();
  CHECK(inbox.submit(make_tasks(2), reader).is_ok());
  inbox.take(true);
  CHECK_EQ(inbox.submit(make_tasks(1), reader).code(), StatusCode::kQueueFull);

  inbox.ended({0});

  CHECK(inbox.submit(make_tasks(1), reader).is_ok());
  CHECK_EQ(inbox.submit(make_tasks(1), reader).code(), StatusCode::kQueueFull);
}

std::vector<Task> tasks_of(uint64_t owner, size_t count) {
  std::vector<Task> tasks = make_tasks(count);
  for (Task& task : tasks) task.sharing_scope.owner = owner;
  return tasks;
}

TEST("an owner's tasks take no more than their share, whoever else has room, and nobody's take what there is") {
  Inbox inbox(10, 2);
  const auto reader = make_reader();
  CHECK(inbox.submit(tasks_of(7, 2), reader).is_ok());

  const Status refused = inbox.submit(tasks_of(7, 1), reader);

  CHECK_EQ(refused.code(), StatusCode::kQueueFull);
  CHECK(refused.message().find("2 of at most 2 tasks of this API key") != std::string::npos);
  CHECK(inbox.submit(tasks_of(8, 2), reader).is_ok());
  CHECK(inbox.submit(tasks_of(0, 6), reader).is_ok());
  CHECK_EQ(inbox.submit(tasks_of(0, 1), reader).code(), StatusCode::kQueueFull);
}

TEST("an owner's place is free again when a task of that owner has ended") {
  Inbox inbox(10, 2);
  const auto reader = make_reader();
  CHECK(inbox.submit(tasks_of(7, 2), reader).is_ok());
  CHECK(inbox.submit(tasks_of(8, 1), reader).is_ok());

  inbox.ended({8, 7});

  CHECK(inbox.submit(tasks_of(7, 1), reader).is_ok());
  CHECK_EQ(inbox.submit(tasks_of(7, 1), reader).code(), StatusCode::kQueueFull);
}

TEST("take returns at once when there is work, and with nothing when there is no mail") {
  Inbox inbox(1);

  const Inbox::Mail mail = inbox.take(true);

  CHECK(mail.submissions.empty());
  CHECK(!mail.has_cancellations && !mail.is_draining && !mail.is_closing);
}

TEST("whatever comes wakes a take that waits") {
  const std::vector<std::function<void(Inbox&)>> arrivals = {
      [](Inbox& inbox) { CHECK(inbox.submit(make_tasks(1), make_reader()).is_ok()); },
      [](Inbox& inbox) { inbox.on_cancel(); },
      [](Inbox& inbox) { inbox.on_room(); },
      [](Inbox& inbox) { inbox.drain("drained"); },
      [](Inbox& inbox) { inbox.close("closed"); },
  };
  for (const auto& arrive : arrivals) {
    Inbox inbox(1);
    std::thread waiting([&inbox] { inbox.take(false); });

    arrive(inbox);

    waiting.join();  // or the watchdog says which test hangs
  }
}

TEST("a cancellation is told once") {
  Inbox inbox(1);
  inbox.on_cancel();

  CHECK(inbox.take(false).has_cancellations);
  CHECK(!inbox.take(true).has_cancellations);
}

constexpr std::chrono::seconds kSecond(1);

TEST("the rate of ends counts the time in which there was something to end, and follows what changes") {
  EndRate ends;
  Clock::time_point now = Clock::now();
  ends.pass(now, false);
  ends.pass(now += 3 * kSecond, true);
  CHECK_EQ(ends.seconds_of_one(), 3.0);  // nothing yet

  for (int i = 0; i < 100; ++i, ends.add(4)) ends.pass(now += kSecond, true);
  CHECK(std::abs(ends.seconds_of_one() - 0.25) < 0.01);
  ends.pass(now += 1000 * kSecond, false);
  CHECK(std::abs(ends.seconds_of_one() - 0.25) < 0.01);

  for (int i = 0; i < 40; ++i, ends.add(1)) ends.pass(now += kSecond, true);
  CHECK(std::abs(ends.seconds_of_one() - 1) < 0.1);
  for (int i = 0; i < 8; ++i, ends.add(1)) ends.pass(now += 60 * kSecond, true);
  CHECK(std::abs(ends.seconds_of_one() - 60) < 2);  // longer than it remembers
}

TEST("who is refused later is told a later time, until those before have come") {
  RoomForecast room;
  const Clock::time_point now = Clock::now();
  const auto is_near = [](double a, double b) { return std::abs(a - b) < 1e-6; };

  CHECK(is_near(room.next(1, 1, 0.5, now), 0.5));
  CHECK(is_near(room.next(1, 1, 0.5, now), 1.0));
  CHECK(is_near(room.next(4, 4, 0.5, now), 3.0));
  CHECK(is_near(room.next(1, 1, 0.5, now + 2 * kSecond), 1.5));
  CHECK(is_near(room.next(2, 1, 0.5, now + 9 * kSecond), 1.0));
  CHECK(is_near(room.next(1000, 1000, 0.5, now), 120.0));
}

TEST("a refused task is told when it has room among all, and among those of its owner") {
  Inbox inbox(3, 2);
  const auto owned = [](uint64_t owner) {
    std::vector<Task> tasks = make_tasks(1);
    tasks[0].sharing_scope.owner = owner;
    return tasks;
  };
  CHECK_EQ(inbox.retry_after(1, 7), 0.0);
  for (int i = 0; i < 2; ++i) CHECK(inbox.submit(owned(7), make_reader()).is_ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_EQ(inbox.retry_after(1, 8), 0.0);
  const double own_s = inbox.retry_after(1, 7);
  CHECK(own_s >= 0.02 && own_s < 10);
  CHECK(inbox.submit(owned(8), make_reader()).is_ok());

  CHECK(inbox.retry_after(1, 8) >= 0.02);
  CHECK(inbox.retry_after(1, 7) >= 2 * own_s);
  inbox.ended({8, 7});
  CHECK_EQ(inbox.retry_after(1, 7), 0.0);
}

TEST("draining is for good, refuses what comes later, and keeps its first reason") {
  Inbox inbox(5);
  CHECK(inbox.submit(make_tasks(1), make_reader()).is_ok());
  inbox.drain("first");
  inbox.drain("second");
  inbox.close("third");

  const Status refused = inbox.submit(make_tasks(1), make_reader());
  const Inbox::Mail mail = inbox.take(false);

  CHECK_EQ(refused.code(), StatusCode::kClosed);
  CHECK_EQ(refused.message(), "first");
  CHECK_EQ(mail.submissions.size(), size_t{1});
  CHECK(mail.is_draining && mail.is_closing);
  CHECK_EQ(mail.reason, "first");
  CHECK(inbox.take(true).is_draining);
  CHECK_EQ(inbox.submit(make_tasks(1), make_reader()).code(), StatusCode::kClosed);
}

TEST("submissions from many threads all arrive, in each thread's order") {
  constexpr int kThreads = 4;
  constexpr int kEach = 300;
  Inbox inbox(kThreads * kEach);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&inbox, thread] {
      const auto reader = make_reader();
      for (int i = 0; i < kEach; ++i) {
        Task task = make_task(thread);
        task.index = i;
        CHECK(inbox.submit({task}, reader).is_ok());
      }
    });
  }

  std::vector<int> seen(kThreads);
  for (int n_arrived = 0; n_arrived < kThreads * kEach;) {
    for (const Submission& submission : inbox.take(false).submissions) {
      CHECK_EQ(submission.task.index, seen[static_cast<size_t>(submission.task.prompt[0])]++);
      ++n_arrived;
    }
  }

  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace corosrv
