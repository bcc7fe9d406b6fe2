// LoRA adapters through the decode loop: who is computed together, and who may begin from whom.
#include <vector>

#include "check.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/decode_loop.h"

namespace corosrv {
namespace {

Task make_adapted(Token name, size_t n_prompt, Adapters adapters) {
  Task task = make_task(name, n_prompt, 6);
  task.sharing_scope.adapters = std::move(adapters);
  return task;
}

TEST("every batch is of one set of adapters, and none waits for another") {
  RunningLoop loop;
  loop.backend.gate.shut();
  loop.start();
  const Adapters none, some{1, 0}, others{0, 0.5f};
  const auto first = loop.submit(make_adapted('a', 40, none));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto client =
      loop.submit({make_adapted('b', 40, some), make_adapted('c', 40, others), make_adapted('d', 40, some)});
  loop.backend.gate.open();

  CHECK(first->finish());
  CHECK(client->finish());

  const auto batches = loop.backend.batches();
  const auto adapters = loop.backend.adapters();
  bool have_shared = false;
  for (size_t i = 0; i < batches.size(); ++i) {
    for (const Row& row : batches[i]) {
      const Token name = row.position == 0 ? row.token : 0;
      if (name != 0) CHECK(adapters[i] == (name == 'a' ? none : name == 'c' ? others : some));
    }
    have_shared = have_shared || (adapters[i] == some && batches[i].front().slot != batches[i].back().slot);
  }
  CHECK(have_shared);
  // Each set is computed in each step, and not one after the other is done.
  for (size_t i = batches.size() - 9; i + 1 < batches.size(); ++i) CHECK(adapters[i] != adapters[i + 1]);
}

TEST("a prefix is shared among equal adapters only, running or kept") {
  RunningLoop loop({4, 64, 60, 1 << 20});
  loop.start();
  const auto cached = [&](Adapters adapters) {
    const auto client = loop.submit(make_adapted('p', 60, std::move(adapters)));
    CHECK(client->finish());
    return client->answer().cached_tokens;
  };

  CHECK_EQ(cached({}), 0);
  CHECK(eventually([&] { return loop.stats().cache_entries == 1; }));
  CHECK_EQ(cached({1}), 0);
  CHECK(eventually([&] { return loop.stats().cache_entries == 2; }));

  CHECK_EQ(cached({}), 59);
  CHECK_EQ(cached({1}), 59);
  CHECK_EQ(cached({0.5f}), 0);

  const auto together =
      loop.submit({make_adapted('q', 60, {}), make_adapted('q', 60, {1}), make_adapted('q', 60, {1})});
  CHECK(together->finish());
  CHECK_EQ(together->answer(0).cached_tokens, 0);
  CHECK_EQ(together->answer(1).cached_tokens, 0);
  CHECK_EQ(together->answer(2).cached_tokens, 59);
  CHECK(loop.backend.faults().empty());
}

}  // namespace
}  // namespace corosrv
