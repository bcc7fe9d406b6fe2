// Slots that share their cells: a budget of tokens, and who gives way when it is spent.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "handover/slot_request.h"
#include "loop/decode_loop.h"
#include "model/embedded_rows.h"

namespace corosrv {
namespace {

constexpr int32_t kCells = 200;
constexpr size_t kCache = 1 << 20;

// A loop whose slots share kCells; the scripted model notes a fault where they hold more.
class SharingLoop : public RunningLoop {
 public:
  explicit SharingLoop(int32_t slots, size_t cache_bytes = kCache)
      : RunningLoop({slots, 64, 60, cache_bytes, 1, false, 0, 0, kCells}, 1000, kCells) {
    backend.shared_cells = kCells;
  }
};

Task with_rows(Token name) {
  Task task = make_task(name, 3, 4);
  task.prompt[1] = -2;
  task.rows = std::make_shared<EmbeddedRows>(task.prompt, 1, std::vector<float>{0.5f});
  return task;
}

TEST("sequences that grow out of the cells they share wait for each other, and none fails") {
  for (const size_t cache_bytes : {size_t{0}, kCache}) {
    SharingLoop loop(4, cache_bytes);
    loop.backend.gate.shut();
    loop.start();
    std::vector<Task> tasks;
    std::vector<std::unique_ptr<Client>> clients;
    for (Token name = 'a'; name < 'a' + 10; ++name) {
      tasks.push_back(make_task(name, 20, 90));
      clients.push_back(loop.submit(tasks.back()));
    }
    loop.backend.gate.open();

    for (size_t i = 0; i < clients.size(); ++i) {
      CHECK(clients[i]->finish());
      CHECK_EQ(clients[i]->answer().finish, Finish::kLength);
      CHECK_EQ(clients[i]->text(), said_alone(tasks[i]));
    }
    CHECK(loop.stats().preempted > 0);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("one sequence may take all cells, and ends with its length there") {
  SharingLoop loop(4);
  loop.start();

  const auto client = loop.submit(make_task('a', 150));

  CHECK(client->finish());
  CHECK_EQ(client->answer().finish, Finish::kLength);
  CHECK_EQ(client->answer().n_tokens, kCells - 150);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("who ran first keeps its cells, and who came last goes on when it has ended") {
  SharingLoop loop(2);
  loop.backend.gate.shut();
  loop.start();
  const auto first = loop.submit(make_task('a', 20, 150));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto second = loop.submit(make_task('b', 20, 100));
  loop.backend.gate.open();

  CHECK(first->finish());
  CHECK(second->finish());

  std::vector<Token> names = loop.backend.names_since(0);
  const auto last_of = [&names](Token name) { return std::find(names.rbegin(), names.rend(), name).base(); };
  const auto n_first = static_cast<size_t>(std::count(names.begin(), names.end(), 'a'));
  CHECK_EQ(n_first, size_t{150});  // its prompt begins once
  CHECK(std::count(names.begin(), last_of('a'), 'b') > 20);
  CHECK(last_of('b') > last_of('a'));
  CHECK_EQ(loop.stats().preempted, uint64_t{1});
}

TEST("a stalled reader lends the cells that others wait for, and loses nothing") {
  SharingLoop loop(4);
  loop.start();
  const Task stalling = make_task('a', 20, 120);
  const auto stalled = loop.submit(stalling, 50);
  CHECK(eventually([&] { return loop.stats().paused == 1; }));

  const auto large = loop.submit(make_task('b', 180, 5));
  CHECK(large->finish());

  CHECK_EQ(loop.stats().preempted, uint64_t{1});
  CHECK(stalled->finish());
  CHECK_EQ(stalled->text(), said_alone(stalling));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

// Runs a task of 100 tokens in slot 0, and returns a request that puts them back into slot 1.
std::shared_ptr<SlotRequest> to_restore(RunningLoop& loop) {
  CHECK(loop.submit(make_task('k', 100, 1))->finish());
  const auto saving = std::make_shared<SlotRequest>(SlotRequest::Action::kSave, 0, 0);
  REQUIRE(loop.inbox->request_slot(saving).is_ok());
  CHECK(is_readable(saving->fd(), kPatience));
  REQUIRE(saving->is_answered());
  REQUIRE(saving->status().is_ok());
  return std::make_shared<SlotRequest>(SlotRequest::Action::kRestore, 1, 0, saving->content());
}

void check_restored(const SlotRequest& request) {
  CHECK(is_readable(request.fd(), kPatience));
  REQUIRE(request.is_answered());
  CHECK(request.status().is_ok());
}

TEST("a slot that is restored waits for the cells of what runs, and nobody starts meanwhile") {
  SharingLoop loop(3);
  std::shared_ptr<SlotRequest> restoring;
  std::unique_ptr<Client> later;
  bool was_restored_before = false;
  loop.backend.before_decode = [&](const ScriptedBackend& backend, const ScriptedBackend::Rows& rows) {
    const bool is_running = backend.has(rows, 'r');
    if (is_running && rows.back().position == 130) CHECK(loop.inbox->request_slot(restoring).is_ok());
    if (is_running && rows.back().position == 140) later = loop.submit(make_task('l', 5, 5));
    if (backend.has(rows, 'l') && rows.back().position == 4) was_restored_before = restoring->is_answered();
    return Status::ok();
  };
  loop.start();
  restoring = to_restore(loop);
  const Task running = make_task('r', 10, 180);

  const auto client = loop.submit(running);

  CHECK(client->finish());
  check_restored(*restoring);
  REQUIRE(later != nullptr);
  CHECK(later->finish());
  CHECK(was_restored_before);
  CHECK_EQ(loop.stats().preempted, uint64_t{0});
  CHECK_EQ(client->text(), said_alone(running));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a stalled reader lends its cells to a slot that is restored") {
  SharingLoop loop(2);
  loop.start();
  const auto restoring = to_restore(loop);
  const Task stalling = make_task('s', 60, 120);
  const auto stalled = loop.submit(stalling, 50);
  CHECK(eventually([&] { return loop.stats().paused == 1; }));

  REQUIRE(loop.inbox->request_slot(restoring).is_ok());

  check_restored(*restoring);
  CHECK(eventually([&] { return loop.stats().preempted == 1; }));
  CHECK(stalled->finish());
  CHECK_EQ(stalled->text(), said_alone(stalling));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("rows of sequences that share cells are computed apart") {
  SharingLoop loop(4);
  loop.backend.gate.shut();
  loop.start();
  const auto first = loop.submit(make_task('s', 1, 2));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto client = loop.submit({with_rows('a'), with_rows('b')});
  loop.backend.gate.open();

  CHECK(client->finish());

  size_t n_row_batches = 0;
  for (const auto& batch : loop.backend.batches()) {
    if (batch.front().embedding == nullptr) continue;
    ++n_row_batches;
    CHECK_EQ(batch.front().slot, batch.back().slot);
  }
  CHECK_EQ(n_row_batches, size_t{2});
}

TEST("what is not a number is wiped before the next batch is computed, also within a step") {
  SharingLoop loop(4);
  bool is_spoilt = false;
  int n_batches_before_wipe = 0;
  loop.backend.spoil = [&](Token name, int32_t position, float* logits, size_t) {
    if (name != 'n' || position != 1) return;
    logits[0] = std::numeric_limits<float>::quiet_NaN();
    is_spoilt = true;
  };
  loop.backend.before_decode = [&](const ScriptedBackend& backend, const ScriptedBackend::Rows&) {
    if (is_spoilt && backend.n_wiped == 0) ++n_batches_before_wipe;
    return Status::ok();
  };
  loop.backend.gate.shut();
  loop.start();
  const auto first = loop.submit(make_task('s', 1, 2));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto client = loop.submit({with_rows('n'), with_rows('o'), make_task('p', 10, 20)});
  loop.backend.gate.open();

  CHECK(client->finish());

  CHECK_EQ(client->answer(0).code, std::string("embeds_not_finite"));
  CHECK_EQ(client->answer(1).n_tokens, 4);
  CHECK_EQ(loop.backend.n_wiped.load(), 1);
  CHECK_EQ(n_batches_before_wipe, 0);
}

TEST("nobody moves to a lower slot where slots share their cells") {
  SharingLoop loop(2);
  loop.backend.gate.shut();
  loop.start();
  const auto low = loop.submit(make_task('a', 1, 2));
  const auto high = loop.submit(make_task('b', 1, 60));
  loop.backend.gate.open();

  CHECK(low->finish());
  CHECK(high->finish());

  CHECK_EQ(high->answer().slot, 1);
  CHECK_EQ(loop.backend.loads().size(), size_t{0});
}

}  // namespace
}  // namespace corosrv
