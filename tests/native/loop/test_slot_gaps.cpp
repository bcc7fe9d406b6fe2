// Slots in use without gaps between them, and rows in their order.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/scripted_backend.h"
#include "fakes/sharing.h"
#include "fakes/tasks.h"

namespace corosrv {
namespace {

using Rows = ScriptedBackend::Rows;

TEST("a gap that stays between the slots in use is closed, and the text goes on") {
  RunningLoop loop(sharing(4));
  loop.backend.gate.shut_after(1);
  const auto first = loop.submit(make_task('1', 3, 1000));
  const auto second = loop.submit(make_task('2', 4, 5));
  const Task task = make_task('3', 5, 1000);
  const auto third = loop.submit(task);
  loop.start();  // with all three in its first step
  REQUIRE(loop.backend.gate.wait_until_held());
  second->reader().cancel();
  loop.backend.gate.open();

  CHECK(third->finish());
  CHECK_EQ(third->text(), said_alone(task));
  CHECK(first->finish());
  // With the second one gone, the last one takes its place.
  const std::vector<Rows> batches = loop.backend.batches();
  const bool is_moved = std::any_of(batches.begin(), batches.end(), [](const Rows& rows) {
    return rows.size() == 2 && rows[0].slot == 0 && rows[1].slot == 1 && rows[0].position > 5;
  });
  CHECK(is_moved);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

// The second of three ends, and the last cannot take its place.
void check_gap_stays(bool can_save, bool fails_to_load) {
  RunningLoop loop(sharing(4, 64, 0));
  loop.backend.can_save = can_save;
  loop.backend.fails_to_load = fails_to_load;
  loop.backend.gate.shut_after(1);
  const auto first = loop.submit(make_task('1', 3, 100));
  const auto second = loop.submit(make_task('2', 4, 5));
  const Task task = make_task('3', 5, 100);
  const auto third = loop.submit(task);
  loop.start();  // with all three in its first step
  REQUIRE(loop.backend.gate.wait_until_held());
  second->reader().cancel();
  loop.backend.gate.open();

  CHECK(third->finish());
  CHECK(first->finish());

  CHECK_EQ(third->text(), said_alone(task));
  CHECK_EQ(loop.backend.n_saves == 0, !can_save);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a gap stays where memory cannot be copied, or the copy cannot be loaded, and the text goes on") {
  check_gap_stays(false, false);
  check_gap_stays(true, true);
}

TEST("slots in a row are no gap, though lower ones are free") {
  RunningLoop loop(sharing(4, 64, 0));
  loop.backend.gate.shut_after(1);
  const auto first = loop.submit(make_task('1', 3, 5));
  const auto second = loop.submit(make_task('2', 4, 100));
  const auto third = loop.submit(make_task('3', 5, 100));
  loop.start();  // with all three in its first step
  REQUIRE(loop.backend.gate.wait_until_held());
  first->reader().cancel();
  loop.backend.gate.open();

  CHECK(second->finish());
  CHECK(third->finish());

  CHECK_EQ(loop.backend.n_saves, 0);
}

TEST("a sequence that has computed nothing closes a gap without a copy") {
  RunningLoop loop(sharing(4, 8));
  loop.backend.gate.shut_after(1);
  loop.start();
  const auto first = loop.submit(make_task('1', 400, 5));
  const auto second = loop.submit(make_task('2', 3, 1000));
  const auto third = loop.submit(make_task('3', 400, 5));
  const auto fourth = loop.submit(make_task('4', 900, 5));  // gets no row before one of these has read its prompt
  REQUIRE(loop.backend.gate.wait_until_held());
  second->reader().cancel();
  loop.backend.gate.open();

  CHECK(first->finish());
  CHECK(third->finish());
  CHECK(fourth->finish());

  int32_t slot = -1;
  for (const Rows& rows : loop.backend.batches()) {
    for (const Row& row : rows) {
      if (row.token == '4' && row.position == 0) slot = row.slot;
    }
  }
  CHECK(slot < 3);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a slot that was left to close a gap holds nothing of who was there") {
  RunningLoop loop(sharing(4, 64, 0));
  loop.backend.gate.shut_after(1);
  loop.start();
  const auto first = loop.submit(make_task('1', 3, 400));
  const auto second = loop.submit(make_task('2', 4, 5));
  const auto third = loop.submit(make_task('3', 5, 400));
  REQUIRE(loop.backend.gate.wait_until_held());
  second->reader().cancel();
  loop.backend.gate.open();
  CHECK(third->finish());
  CHECK(first->finish());

  std::vector<Task> tasks;
  std::vector<std::unique_ptr<Client>> clients;
  for (Token name = 'a'; name < 'e'; ++name) {
    tasks.push_back(make_task(name, 5, 20));
    clients.push_back(loop.submit(tasks.back()));
  }

  for (size_t i = 0; i < clients.size(); ++i) {
    CHECK(clients[i]->finish());
    CHECK_EQ(clients[i]->text(), said_alone(tasks[i]));
  }
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("rows stand in the order of their slots, whoever came first") {
  RunningLoop loop(sharing(4));
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int round = 0; round < 10; ++round) {
    for (Token name = 'a'; name < 'e'; ++name) clients.push_back(loop.submit(make_task(name, 5, 3 + name % 7)));
  }
  for (const auto& client : clients) CHECK(client->finish());

  for (const Rows& rows : loop.backend.batches()) {
    CHECK(std::is_sorted(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.slot < b.slot; }));
  }
}

}  // namespace
}  // namespace corosrv
