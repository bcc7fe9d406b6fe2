// Slots as others see them, and tasks that want a certain one.
#include <vector>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/decode_loop.h"

namespace corosrv {
namespace {

Task make_wanting(Token name, int32_t slot, int64_t id, int32_t max_tokens = 4) {
  Task task = make_task(name, 20, max_tokens);
  task.slot = slot;
  task.id = id;
  return task;
}

int32_t slot_of(Client& client) {
  CHECK(client.finish());
  return client.answer().slot;
}

TEST("a slot shows what runs in it, and afterwards what did") {
  RunningLoop loop({3, 64, 60});
  loop.backend.scripts['a'] = "one\ntwo";
  loop.start();
  CHECK_EQ(loop.slots().size(), size_t{3});
  CHECK_EQ(loop.slots()[1].task, int64_t{-1});
  loop.backend.gate.shut_after(3);
  const auto client = loop.submit(make_wanting('a', 1, 77, -1));
  REQUIRE(loop.backend.gate.wait_until_held());

  const SlotStatus busy = loop.slots()[1];
  loop.backend.gate.open();
  CHECK(client->finish());
  CHECK(eventually([&] { return loop.slots()[1].is_busy == 0; }));
  const SlotStatus rests = loop.slots()[1];

  CHECK_EQ(busy.task, int64_t{77});
  CHECK_EQ(busy.is_busy, 1);
  CHECK_EQ(busy.prompt_tokens, 20);
  CHECK_EQ(busy.computed_tokens, 20);
  CHECK_EQ(busy.generated_tokens, 3);
  CHECK_EQ(busy.has_new_line, 0);
  CHECK_EQ(rests.task, int64_t{77});
  CHECK_EQ(rests.generated_tokens, 8);
  CHECK_EQ(rests.has_new_line, 1);
  CHECK_EQ(loop.slots()[0].task, int64_t{-1});
}

TEST("a task gets the slot that it wants of a reader that nobody reads, though another slot is free") {
  RunningLoop loop({2, 64, 60});
  loop.start();
  const auto stalled = loop.submit(make_wanting('a', 0, 1, 30), 4);  // bytes: it pauses after some tokens
  REQUIRE(eventually([&] { return loop.stats().paused == 1; }));

  const auto wanting = loop.submit(make_wanting('b', 0, 2));

  CHECK_EQ(slot_of(*wanting), 0);
  CHECK(stalled->finish());
  CHECK_EQ(stalled->text(), said_alone(make_wanting('a', 0, 1, 30)));
}

TEST("a task that wants a slot waits for it, and holds up nobody") {
  RunningLoop loop({2, 64, 60});
  loop.backend.gate.shut();
  loop.start();
  const auto holder = loop.submit(make_wanting('a', 1, 1, 30));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto wanting = loop.submit({make_wanting('b', 1, 2)});
  const auto others = loop.submit({make_wanting('c', -1, 3)});
  loop.backend.gate.open();

  CHECK_EQ(slot_of(*others), 0);
  CHECK_EQ(slot_of(*holder), 1);
  CHECK_EQ(slot_of(*wanting), 1);
  CHECK(loop.backend.faults().empty());
}

TEST("a sequence stays in the slot that it wants, whatever gap is below") {
  RunningLoop loop({4, 64, 60});
  loop.start();

  const auto client = loop.submit(make_wanting('a', 3, 1, 40));

  CHECK_EQ(slot_of(*client), 3);
}

}  // namespace
}  // namespace corosrv
