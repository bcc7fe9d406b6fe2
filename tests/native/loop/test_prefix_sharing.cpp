#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/scripted_backend.h"
#include "fakes/sharing.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/decode_loop.h"

namespace corosrv {
namespace {

using Rows = ScriptedBackend::Rows;

int64_t n_rows(const ScriptedBackend& backend) {
  int64_t n = 0;
  for (const Rows& rows : backend.batches()) n += static_cast<int64_t>(rows.size());
  return n;
}

// Submits, waits for the end, and checks the answer against the one that is said alone.
const Answer check_answer(RunningLoop& loop, const Task& task) {
  const auto client = loop.submit(task);
  CHECK(client->finish());
  CHECK_EQ(client->text(), said_alone(task));
  return client->answer();
}

TEST("a prompt begins where an earlier one that ended began like it") {
  RunningLoop loop(sharing(2));
  loop.start();
  CHECK_EQ(check_answer(loop, task_with(100, "one")).cached_tokens, 0);

  const Answer answer = check_answer(loop, task_with(100, "two"));

  CHECK_EQ(answer.cached_tokens, 100);
  CHECK_EQ(answer.prompt_tokens, 103);
  CHECK_EQ(loop.stats().cached_tokens, uint64_t{100});
  CHECK_EQ(loop.stats().prompt_tokens, uint64_t{103 + 3});
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("nothing is shared between owners, neither what was kept nor what is being computed") {
  Task mine = task_with(100, "one");
  Task theirs = task_with(100, "two");
  mine.sharing_scope.owner = 1;
  theirs.sharing_scope.owner = 2;

  RunningLoop one_by_one(sharing(2));
  one_by_one.start();
  CHECK_EQ(check_answer(one_by_one, mine).cached_tokens, 0);
  CHECK_EQ(check_answer(one_by_one, theirs).cached_tokens, 0);
  CHECK_EQ(check_answer(one_by_one, mine).cached_tokens, 102);

  RunningLoop together(sharing(2));
  const auto first = together.submit(mine);
  const auto second = together.submit(theirs);
  together.start();
  CHECK(first->finish());
  CHECK(second->finish());
  CHECK_EQ(together.stats().cached_tokens, uint64_t{0});
}

TEST("an answer is part of what the next prompt may begin with") {
  RunningLoop loop(sharing(1));
  loop.start();
  Task first = task_with(40, "question");
  const Answer said = check_answer(loop, first);
  first.prompt.insert(first.prompt.end(), said.text.begin(), said.text.end());
  first.prompt.push_back('?');

  // All of it but the last token drawn, which nobody has computed.
  CHECK_EQ(check_answer(loop, first).cached_tokens, 40 + 8 + static_cast<int32_t>(said.text.size()) - 1);
}

TEST("the same prompt again computes its last token, whose logits it needs") {
  RunningLoop loop(sharing(1));
  loop.start();
  check_answer(loop, task_with(50, "same"));
  const int64_t n_before = n_rows(loop.backend);

  CHECK_EQ(check_answer(loop, task_with(50, "same", 1)).cached_tokens, 53);
  CHECK_EQ(n_rows(loop.backend), n_before + 1);
}

TEST("sequences that come together compute what they share once, while it is computed") {
  RunningLoop loop(sharing(8, 16));
  loop.backend.gate.shut();
  loop.start();
  std::vector<Task> tasks;
  std::vector<std::unique_ptr<Client>> clients;
  clients.push_back(loop.submit(make_task('x', 1, 1)));
  REQUIRE(loop.backend.gate.wait_until_held());
  for (char own = 'a'; own < 'h'; ++own) {
    tasks.push_back(task_with(200, std::string(3, own)));
    clients.push_back(loop.submit(tasks.back()));
  }
  loop.backend.gate.open();

  CHECK(clients[0]->finish());
  int32_t n_cached = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    CHECK(clients[i + 1]->finish());
    CHECK_EQ(clients[i + 1]->text(), said_alone(tasks[i]));
    n_cached += clients[i + 1]->answer().cached_tokens;
  }
  CHECK_EQ(n_cached, 6 * 200);
  CHECK_EQ(loop.stats().prompt_tokens, uint64_t{1 + 200 + 7 * 3});
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("who waits for a prefix goes on when the sequence that computes it is cancelled") {
  RunningLoop loop(sharing(2, 16));
  loop.backend.gate.shut_after(2);
  loop.start();
  const auto leader = loop.submit(task_with(200, "leader"));
  const Task task = task_with(200, "follower");
  const auto follower = loop.submit(task);
  REQUIRE(loop.backend.gate.wait_until_held());
  leader->reader().cancel();
  loop.backend.gate.open();

  CHECK(follower->finish());
  CHECK_EQ(follower->text(), said_alone(task));
  CHECK(follower->answer().cached_tokens > 0);  // what the other had computed is not lost
  CHECK(leader->finish());
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("who waits for a prefix goes on when the reader of the sequence that computes it is full") {
  RunningLoop loop(sharing(3, 16));
  loop.backend.gate.shut();
  loop.start();
  const auto blocker = loop.submit(make_task('x', 1, 1));
  REQUIRE(loop.backend.gate.wait_until_held());
  // One reader, nobody reads it: the first task fills it while the second reads its prompt.
  const auto stalled = loop.submit({make_task('t', 1, 500), task_with(4000, "leader")}, 64);
  const Task task = task_with(4000, "follower");
  const auto follower = loop.submit(task);
  loop.backend.gate.open();

  CHECK(follower->finish());
  CHECK_EQ(follower->text(), said_alone(task));
  CHECK(stalled->finish());
  CHECK(blocker->finish());
}

TEST("a task that shares no prefix neither takes nor leaves one") {
  RunningLoop loop(sharing(2));
  loop.start();
  Task secret = task_with(100, "secret");
  secret.share_prefix = false;
  check_answer(loop, secret);
  CHECK_EQ(check_answer(loop, task_with(100, "secret")).cached_tokens, 0);

  CHECK_EQ(check_answer(loop, secret).cached_tokens, 0);
}

TEST("who shares nothing waits for nobody who computes the same") {
  for (const size_t cache_bytes : {size_t{0}, size_t{1} << 20}) {
    RunningLoop loop(sharing(3, 64, cache_bytes));
    loop.backend.gate.shut();
    loop.start();
    const auto blocker = loop.submit(make_task('x', 1, 1));
    REQUIRE(loop.backend.gate.wait_until_held());
    Task task = task_with(300, "same");
    task.share_prefix = cache_bytes == 0;
    const auto first = loop.submit(task), second = loop.submit(task);
    loop.backend.gate.open();

    CHECK(blocker->finish());
    CHECK(first->finish());
    CHECK(second->finish());

    const std::vector<Rows> batches = loop.backend.batches();
    const bool are_together = std::any_of(batches.begin(), batches.end(), [](const Rows& rows) {
      return rows.front().slot != rows.back().slot && rows.front().position < 300 && rows.back().position < 300;
    });
    CHECK(are_together);
  }
}

TEST("who finds as much in the cache as somebody is about to compute does not wait for it") {
  RunningLoop loop(sharing(3, 16));
  loop.start();
  check_answer(loop, task_with(200, "known", 1));
  loop.backend.gate.shut();
  const auto blocker = loop.submit(make_task('x', 1, 1));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto first = loop.submit(task_with(200, std::string(100, 'a')));
  const auto second = loop.submit(task_with(200, std::string(100, 'b')));
  loop.backend.gate.open();

  CHECK(blocker->finish());
  CHECK(first->finish());
  CHECK(second->finish());

  CHECK_EQ(first->answer().cached_tokens, 200);
  CHECK_EQ(second->answer().cached_tokens, 200);
  loop.close("the test is over");     // the last is kept after its answer went out
  CHECK_EQ(loop.backend.n_saves, 3);  // of each at its end, and of nobody for another's sake
}

TEST("what is short or was kept already is not copied") {
  RunningLoop loop(sharing(1));
  loop.start();
  check_answer(loop, make_task('s', 2, 1));
  CHECK_EQ(loop.backend.n_saves, 0);
  CHECK(loop.stats().cache_entries == 0);
  check_answer(loop, task_with(100, "same", 1));
  CHECK(eventually([&] { return loop.stats().cache_entries == 1; }));  // it is kept after its answer went out

  check_answer(loop, task_with(100, "same", 1));

  loop.close("the test is over");
  CHECK_EQ(loop.backend.n_saves, 1);
}

TEST("who waited for a sequence whose memory cannot be copied begins anew") {
  RunningLoop loop(sharing(3, 16));
  loop.backend.fails_to_save = true;
  loop.backend.gate.shut();
  loop.start();
  const auto blocker = loop.submit(make_task('x', 1, 1));
  REQUIRE(loop.backend.gate.wait_until_held());
  const Task task = task_with(200, "two");
  const auto first = loop.submit(task_with(200, "one")), second = loop.submit(task);
  loop.backend.gate.open();

  CHECK(blocker->finish());
  CHECK(first->finish());
  CHECK(second->finish());

  CHECK_EQ(second->text(), said_alone(task));
  CHECK_EQ(second->answer().cached_tokens, 0);
  CHECK(loop.stats().cache_entries == 0);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("nothing is shared where the limit is 0, or the model's memory cannot be copied") {
  for (const bool can_save : {true, false}) {
    RunningLoop loop(sharing(2, 64, can_save ? 0 : 1 << 20));
    loop.backend.can_save = can_save;
    loop.start();
    check_answer(loop, task_with(100, "one"));

    CHECK_EQ(check_answer(loop, task_with(100, "two")).cached_tokens, 0);
    CHECK_EQ(loop.backend.n_saves, 0);
  }
}

TEST("a snapshot that cannot be loaded costs a prefill and nothing else") {
  RunningLoop loop(sharing(2));
  loop.backend.fails_to_load = true;
  loop.start();
  check_answer(loop, task_with(100, "one"));
  Task two = task_with(100, "two");
  const std::string expected = said_alone(two);
  two.slot = 1;

  const auto client = loop.submit(two);

  CHECK(client->finish());
  CHECK_EQ(client->text(), expected);
  CHECK_EQ(client->answer().cached_tokens, 0);
}

TEST("an answer that ended in an error leaves nothing behind") {
  RunningLoop loop(sharing(1));
  loop.backend.spoil = [](Token name, int32_t position, float* logits, size_t size) {
    if (name == 's' && position == 105) {
      std::fill_n(logits, size, std::numeric_limits<float>::quiet_NaN());
    }
  };
  loop.start();
  const auto client = loop.submit(task_with(100, "bad"));
  CHECK(client->finish());
  CHECK_EQ(client->answer().finish, Finish::kError);

  const auto next = loop.submit(task_with(100, "ok", 1));
  CHECK(next->finish());
  CHECK_EQ(next->answer().cached_tokens, 0);
}

// A model some of whose layers see no more than the last tokens: copies have only these.
void set_window(ScriptedBackend& backend, int32_t window, bool resumes = true) {
  backend.changeable_info().window = window;
  backend.changeable_info().resumes_in_window = resumes;
}

TEST("with a window, a sequence stops where those that follow it begin") {
  RunningLoop loop(sharing(4, 64));
  set_window(loop.backend, 20);
  loop.backend.gate.shut();
  loop.start();
  std::vector<Task> tasks{task_with(100, "one"), task_with(100, "two"), task_with(70, "three")};
  std::vector<std::unique_ptr<Client>> clients;
  clients.push_back(loop.submit(make_task('x', 1, 1)));
  REQUIRE(loop.backend.gate.wait_until_held());
  for (const Task& task : tasks) clients.push_back(loop.submit(task));
  loop.backend.gate.open();

  for (const auto& client : clients) CHECK(client->finish());
  for (size_t i = 0; i < tasks.size(); ++i) CHECK_EQ(clients[i + 1]->text(), said_alone(tasks[i]));
  CHECK_EQ(loop.stats().cached_tokens, uint64_t{100 + 70});
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("no sequence stops within the window, where what follows it begins") {
  RunningLoop loop(sharing(3, 256));
  set_window(loop.backend, 200);
  loop.backend.gate.shut();
  loop.start();
  const auto blocker = loop.submit(make_task('x', 1, 1));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto leader = loop.submit(task_with(10, std::string(40, 'a')));
  const auto follower = loop.submit(task_with(10, std::string(40, 'b')));
  loop.backend.gate.open();

  CHECK(blocker->finish() && leader->finish() && follower->finish());
  CHECK_EQ(loop.backend.batches()[1].size(), size_t{50});
  CHECK_EQ(follower->answer().cached_tokens, 10);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("with a window, what cannot be copied any more is computed once again, for all that come next") {
  RunningLoop loop(sharing(1));
  set_window(loop.backend, 20);
  loop.start();

  CHECK_EQ(check_answer(loop, task_with(100, "one")).cached_tokens, 0);
  CHECK_EQ(check_answer(loop, make_task('o', 50, 1)).cached_tokens, 0);  // takes the slot
  CHECK_EQ(check_answer(loop, task_with(100, "two")).cached_tokens, 0);
  CHECK_EQ(check_answer(loop, make_task('p', 50, 1)).cached_tokens, 0);
  CHECK_EQ(check_answer(loop, task_with(100, "three")).cached_tokens, 100);
  CHECK_EQ(check_answer(loop, make_task('q', 50, 1)).cached_tokens, 0);
  CHECK_EQ(check_answer(loop, task_with(100, "four")).cached_tokens, 100);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("with a window, who shares a prompt with a sequence that is far behind it leaves a copy") {
  for (const bool is_together : {false, true}) {
    RunningLoop loop(sharing(3));
    set_window(loop.backend, 20);
    loop.backend.gate.shut_after(6);
    loop.start();
    const auto far = loop.submit(task_with(100, "far", 500));
    REQUIRE(loop.backend.gate.wait_until_held());
    const Task two = task_with(100, "two"), three = task_with(100, "other");
    Task in_last_slot = three;  // which holds nothing
    in_last_slot.slot = 2;
    const auto second = loop.submit(two);
    if (!is_together) {
      loop.backend.gate.open();
      CHECK(second->finish());
    }
    const auto third = loop.submit(in_last_slot);
    loop.backend.gate.open();

    CHECK(second->finish());
    CHECK(third->finish());
    CHECK_EQ(second->text(), said_alone(two));
    CHECK_EQ(third->text(), said_alone(three));
    CHECK_EQ(second->answer().cached_tokens, 0);
    CHECK_EQ(third->answer().cached_tokens, 100);
    far->reader().cancel();
    CHECK(far->finish());
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("with a window, what a device's slot holds is computed once again for those of other slots") {
  RunningLoop loop(sharing(3));
  set_window(loop.backend, 20);
  loop.backend.changeable_info().computes_aside = true;
  loop.start();
  std::vector<int32_t> known;
  for (int32_t slot = 0; slot < 3; ++slot) {
    const Task alone = task_with(100, "on" + std::string(1, static_cast<char>('a' + slot)));
    Task task = alone;
    task.slot = slot;
    const auto client = loop.submit(task);
    CHECK(client->finish());
    CHECK_EQ(client->text(), said_alone(alone));
    known.push_back(client->answer().cached_tokens);
  }

  CHECK_EQ(known, (std::vector<int32_t>{0, 0, 102}));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("with a window, a chat goes on from the copy of its last turn, unless the same bits are promised") {
  for (const bool resumes : {false, true}) {
    RunningLoop loop(sharing(1));
    set_window(loop.backend, 20, resumes);
    loop.start();
    Task chat = task_with(40, "question");
    const Answer said = check_answer(loop, chat);
    check_answer(loop, make_task('o', 50, 1));
    chat.prompt.insert(chat.prompt.end(), said.text.begin(), said.text.end());
    chat.prompt.push_back('?');

    const int32_t n_known = 40 + 8 + static_cast<int32_t>(said.text.size()) - 1;
    CHECK_EQ(check_answer(loop, chat).cached_tokens, resumes ? n_known : 0);
    if (!resumes) CHECK_EQ(loop.backend.n_saves, 0);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  }
}

TEST("with a window, what a slot has lost before it is not gone on from") {
  RunningLoop loop(sharing(2));
  set_window(loop.backend, 20);
  loop.start();
  Task first = task_with(60, "one"), spoiled = make_task('o', 30, 4);
  first.slot = 0;
  spoiled.slot = 1;
  check_answer(loop, first);
  loop.backend.spoil = [](Token name, int32_t, float* logits, size_t size) {
    if (name == 'o') std::fill_n(logits, size, std::numeric_limits<float>::quiet_NaN());
  };
  const auto failed = loop.submit(spoiled);  // its slot is wiped, and the other's content taken out and put back
  CHECK(failed->finish());
  REQUIRE(loop.backend.n_wiped > 0);

  Task second = task_with(50, "two");
  second.slot = 0;
  CHECK_EQ(check_answer(loop, second).cached_tokens, 0);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

// Everything at once: shared prefixes, cancellations, stalled readers, little memory and a small cache.
void check_random_load(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](size_t bound) { return static_cast<size_t>(random()) % bound; };
  DecodeLoop::Limits limits =
      sharing(static_cast<int32_t>(1 + below(5)), static_cast<int32_t>(8 + below(60)), below(4) * 2000);
  if (below(3) == 0) limits.shared_cells = 200;
  RunningLoop loop(limits, 1000, limits.shared_cells > 0 ? limits.shared_cells : 4096);
  loop.backend.shared_cells = static_cast<size_t>(limits.shared_cells);
  if (below(2) == 0) limit_memory(loop.backend, 200);
  loop.backend.changeable_info().computes_aside = below(2) == 0;
  if (below(2) == 0) set_window(loop.backend, static_cast<int32_t>(1 + below(40)), below(3) > 0);
  loop.start();
  std::vector<Task> tasks;
  std::vector<std::unique_ptr<Client>> clients;
  std::set<size_t> cancelled;
  for (size_t i = 0; i < 25; ++i) {
    Task task =
        task_with(below(2) * (20 + below(3) * 40), std::string(1 + below(30), static_cast<char>('a' + below(4))),
                  static_cast<int32_t>(1 + below(30)));
    task.share_prefix = below(5) > 0;
    tasks.push_back(task);
    clients.push_back(loop.submit(task, below(3) == 0 ? 5 : 1 << 20));
    if (below(6) == 0) {
      clients.back()->reader().cancel();
      cancelled.insert(i);
    }
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    CHECK(clients[i]->finish());
    CHECK_EQ(clients[i]->answer().n_terminal, 1);
    CHECK_EQ(clients[i]->answer().n_late, 0);
    const std::string alone = said_alone(tasks[i]);
    if (cancelled.count(i) == 0) {
      CHECK_EQ(clients[i]->text(), alone);
    } else {
      CHECK_EQ(alone.compare(0, clients[i]->text().size(), clients[i]->text()), 0);
    }
  }
  CHECK(eventually([&] { return loop.stats().running == 0 && loop.stats().waiting == 0; }));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("under any load each answer is what it is alone, and everyone ends (I4, I9)") {
  for (uint32_t seed = 1; seed <= 60; ++seed) check_random_load(seed);
}

}  // namespace
}  // namespace corosrv
