// Sequences that give their slots and their memory to others, and go on later.
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/scripted_backend.h"
#include "fakes/sharing.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"

namespace corosrv {
namespace {

// I6: a reader that nobody reads holds no slot that others wait for, and loses nothing.
TEST("stalled readers lend their slots, and say all they have to say once they are read") {
  RunningLoop loop(sharing(2));
  loop.start();
  std::vector<Task> tasks;
  std::vector<std::unique_ptr<Client>> stalled;
  for (Token name = 'a'; name < 'a' + 6; ++name) {
    tasks.push_back(make_task(name, 20, 300));
    stalled.push_back(loop.submit(tasks.back(), 50));
  }
  CHECK(eventually([&] { return loop.stats().paused == 6; }));

  const Task task = make_task('x', 3, 100);
  const auto lively = loop.submit(task);
  CHECK(lively->finish());
  CHECK_EQ(lively->text(), said_alone(task));

  CHECK(loop.stats().preempted >= 5);
  for (size_t i = 0; i < stalled.size(); ++i) {
    CHECK(stalled[i]->finish());
    CHECK_EQ(stalled[i]->text(), said_alone(tasks[i]));
    CHECK_EQ(stalled[i]->answer().n_terminal, 1);
  }
  CHECK(eventually([&] { return loop.stats().running == 0 && loop.stats().waiting == 0; }));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a stalled reader that is cancelled while parked ends (I5)") {
  RunningLoop loop(sharing(1));
  loop.start();
  const auto stalled = loop.submit(make_task('a', 20, 300), 50);
  CHECK(eventually([&] { return loop.stats().paused == 1; }));
  const auto lively = loop.submit(make_task('x', 3, 10));
  CHECK(lively->finish());

  stalled->reader().cancel();

  CHECK(stalled->finish());
  CHECK_EQ(stalled->answer().finish, Finish::kCancelled);
  CHECK_EQ(stalled->answer().n_terminal, 1);
}

TEST("a stalled reader that has lent its slot is not counted among those that wait for one") {
  RunningLoop loop(sharing(1));
  loop.start();
  const auto stalled = loop.submit(make_task('a', 20, 300), 50);
  CHECK(eventually([&] { return loop.stats().paused == 1; }));
  const auto lively = loop.submit(make_task('x', 3, 10));
  CHECK(lively->finish());

  CHECK(eventually([&] { return loop.stats().running == 0; }));
  CHECK_EQ(loop.stats().paused, 1);
  CHECK_EQ(loop.stats().waiting, 0);

  CHECK(stalled->finish());
}

TEST("when the memory is full sequences wait for each other, and none fails") {
  for (const size_t cache_bytes : {size_t{0}, size_t{1} << 20}) {
    RunningLoop loop(sharing(4, 64, cache_bytes));
    limit_memory(loop.backend, 120);
    loop.start();
    std::vector<Task> tasks;
    std::vector<std::unique_ptr<Client>> clients;
    for (Token name = 'a'; name < 'a' + 10; ++name) {
      tasks.push_back(make_task(name, 20, 60));
      clients.push_back(loop.submit(tasks.back()));
    }

    for (size_t i = 0; i < clients.size(); ++i) {
      CHECK(clients[i]->finish());
      CHECK_EQ(clients[i]->answer().finish, Finish::kLength);
      CHECK_EQ(clients[i]->text(), said_alone(tasks[i]));
    }
    CHECK(loop.stats().preempted > 0);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("a sequence that the memory cannot hold even alone ends with an error, the others go on") {
  RunningLoop loop(sharing(2));
  limit_memory(loop.backend, 50);
  loop.start();
  const auto huge = loop.submit(make_task('h', 80, 5));
  const Task task = make_task('t', 10, 20);
  const auto other = loop.submit(task);

  CHECK(other->finish());
  CHECK_EQ(other->text(), said_alone(task));
  CHECK(huge->finish());
  CHECK_EQ(huge->answer().finish, Finish::kError);
}

}  // namespace
}  // namespace corosrv
