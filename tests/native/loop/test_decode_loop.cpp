#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"
#include "fakes/client.h"
#include "fakes/running_loop.h"
#include "fakes/scripted_backend.h"
#include "fakes/tasks.h"
#include "fakes/waiting.h"
#include "loop/decode_loop.h"

namespace corosrv {
namespace {

using Rows = ScriptedBackend::Rows;

bool contains(const std::vector<Token>& names, Token name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Sampling seeded(uint32_t seed) {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = seed;
  return sampling;
}

TEST("the loop reads the prompt, says what the model says and ends with it") {
  RunningLoop loop;
  loop.backend.scripts['a'] = "hello";
  loop.start();

  const auto client = loop.submit(make_task('a', 3));

  CHECK(client->finish());
  CHECK_EQ(client->text(), "hello");
  CHECK_EQ(client->answer().n_tokens, 6);
  CHECK_EQ(client->answer().finish, Finish::kStop);
  CHECK(loop.backend.faults().empty());
  CHECK(eventually([&] { return loop.stats().running == 0; }));
  const LoopStats stats = loop.stats();
  CHECK_EQ(stats.tasks_stop, uint64_t{1});
  CHECK_EQ(stats.prompt_tokens, uint64_t{3});
  CHECK_EQ(stats.generated_tokens, uint64_t{6});
  CHECK_EQ(stats.steps, uint64_t{6});
}

TEST("fewer threads compute where all of them are slower") {
  DecodeLoop::Limits limits{4, 64, 60};
  limits.threads = 2;
  RunningLoop loop(limits);
  loop.backend.scripts['a'] = std::string(2000, 'x');
  loop.backend.before_decode = [](const ScriptedBackend& backend, const ScriptedBackend::Rows&) {
    std::this_thread::sleep_for(std::chrono::microseconds(backend.n_threads == 1 ? 1000 : 3000));
    return Status::ok();
  };
  loop.start();

  const auto client = loop.submit(make_task('a'));

  CHECK(eventually([&] { return loop.stats().steps > 40 && loop.stats().threads == 1; }));
  CHECK_EQ(loop.backend.n_threads, 1);
}

TEST("of rows whose largest logits a device has picked, the others are fetched for those sequences that need them") {
  Sampling wide = seeded(3);
  wide.top_k = 0;
  Sampling told = seeded(4);
  told.n_probs = 1;
  const auto say = [&](size_t n_picked, std::vector<Token>& fetched) {
    RunningLoop loop;
    loop.backend.n_picked = n_picked;
    loop.start();
    std::vector<std::unique_ptr<Client>> clients;
    clients.push_back(loop.submit(make_task('a', 3, 20, seeded(1))));
    clients.push_back(loop.submit(make_task('b', 3, 20, seeded(2))));
    clients.push_back(loop.submit(make_task('c', 3, 20, wide)));
    clients.push_back(loop.submit(make_task('d', 3, 20, told)));
    std::vector<std::string> texts;
    for (const auto& client : clients) {
      CHECK(client->finish());
      texts.push_back(client->text());
    }
    CHECK(loop.backend.faults().empty());
    fetched = loop.backend.fetched();
    return texts;
  };
  std::vector<Token> of_all, of_picked;

  CHECK(say(40, of_picked) == say(0, of_all));

  CHECK(of_all.empty());
  CHECK_EQ(std::count(of_picked.begin(), of_picked.end(), Token{'c'}), 20);
  CHECK_EQ(std::count(of_picked.begin(), of_picked.end(), Token{'d'}), 20);
  CHECK_EQ(of_picked.size(), size_t{40});
}

TEST("tasks of one reader are told apart by index") {
  RunningLoop loop;
  loop.backend.scripts = {{'a', "one"}, {'b', "two"}, {'c', "three"}};
  loop.start();

  const auto client = loop.submit({make_task('a'), make_task('b'), make_task('c')});

  CHECK(client->finish());
  CHECK_EQ(client->text(0), "one");
  CHECK_EQ(client->text(1), "two");
  CHECK_EQ(client->text(2), "three");
}

TEST("more tasks than slots are served in turn, each slot from its beginning") {
  RunningLoop loop({2, 8, 60});
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (Token name = 'a'; name < 'a' + 20; ++name) clients.push_back(loop.submit(make_task(name, 5, 7)));

  for (const auto& client : clients) {
    CHECK(client->finish());
    CHECK_EQ(client->answer().finish, Finish::kLength);
  }
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("no batch has more rows than a step may have, and each slot's rows stand together") {
  RunningLoop loop({8, 16, 60});
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (Token name = 'a'; name < 'a' + 12; ++name) clients.push_back(loop.submit(make_task(name, 50, 10)));
  for (const auto& client : clients) CHECK(client->finish());

  for (const Rows& rows : loop.backend.batches()) {
    CHECK(!rows.empty() && rows.size() <= 16);
    std::vector<int32_t> slots;
    for (const Row& row : rows) slots.push_back(row.slot);
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    std::sort(slots.begin(), slots.end());
    CHECK(std::adjacent_find(slots.begin(), slots.end()) == slots.end());
  }
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("a task that cannot be taken up ends with an error, and the loop goes on (I4, I10)") {
  RunningLoop loop;
  int n_asked = 0;  // by the decode thread, which takes tasks up
  loop.backend.on_info = [&n_asked, test_thread = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != test_thread && ++n_asked == 2) throw std::bad_alloc();
  };
  loop.backend.scripts['c'] = "here";
  loop.start();

  const auto client = loop.submit({make_task('a', 1, 3), make_task('b', 1, 3), make_task('c')});

  CHECK(client->finish());
  CHECK_EQ(client->answer(0).finish, Finish::kLength);
  CHECK_EQ(client->answer(1).finish, Finish::kError);
  CHECK_EQ(client->answer(1).n_terminal, 1);
  CHECK_EQ(client->text(2), "here");
  CHECK(eventually([&] { return loop.inbox->in_flight() == 0; }));
  CHECK_EQ(loop.stats().tasks_error, uint64_t{1});
}

// I3. The reader is read while the step goes on: after each chunk that the step puts into it.
TEST("a reader of many tasks is woken once by a step, though it is read meanwhile") {
  Signals signals;
  const auto reader = make_reader();
  std::vector<Chunk> taken;
  for (int32_t index = 0; index < 8; ++index) {
    Chunk chunk;
    chunk.index = index;
    signals.push(reader, std::move(chunk));
    CHECK(!is_readable(reader->fd(), 0));
    if (index < 7) reader->take(taken);
  }

  CHECK_EQ(signals.send(), size_t{1});
  CHECK(is_readable(reader->fd(), 0));
  CHECK_EQ(signals.send(), size_t{0});
  reader->take(taken);
  CHECK_EQ(taken.size(), size_t{1});
  signals.push(reader, Chunk());
  CHECK_EQ(signals.send(), size_t{1});
}

TEST("each step writes each reader's descriptor at most once") {
  RunningLoop loop({8, 64, 60});
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 2; ++i) {
    std::vector<Task> tasks;
    for (Token name = 'a'; name < 'd'; ++name) tasks.push_back(make_task(name, 3, 50));
    clients.push_back(loop.submit(std::move(tasks)));
  }
  for (const auto& client : clients) CHECK(client->finish());

  CHECK(loop.stats().eventfd_writes <= 2 * loop.stats().steps);
}

// I5. In each of these the model is held in a step; what is cancelled then must be in no later batch, and its slot
// goes to whoever comes next.

struct HeldLoop : RunningLoop {
  explicit HeldLoop(DecodeLoop::Limits limits) : RunningLoop(limits) {
    backend.scripts['n'] = "next";
    backend.gate.shut();
    start();
  }
};

void check_cancelled(Client& client) {
  CHECK(client.finish());
  CHECK_EQ(client.answer().finish, Finish::kCancelled);
  CHECK_EQ(client.answer().n_terminal, 1);
}

TEST("cancelling a task that waits ends it within the step, and it is never computed (I5)") {
  HeldLoop loop({1, 8, 60});
  const auto running = loop.submit(make_task('r', 1, 3));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto waiting = loop.submit(make_task('w'));
  const auto next = loop.submit(make_task('n'));

  waiting->reader().cancel();
  loop.backend.gate.open();

  check_cancelled(*waiting);
  CHECK(running->finish());
  CHECK(next->finish());
  CHECK_EQ(next->text(), "next");
  CHECK(!contains(loop.backend.names_since(0), 'w'));
  CHECK(eventually([&] { return loop.inbox->in_flight() == 0; }));
}

TEST("cancelling a task that reads its prompt frees the slot after the step in progress (I5)") {
  HeldLoop loop({1, 4, 60});
  const auto cancelled = loop.submit(make_task('c', 1000));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto next = loop.submit(make_task('n'));

  cancelled->reader().cancel();
  loop.backend.gate.open();

  CHECK(next->finish());
  CHECK_EQ(next->text(), "next");
  check_cancelled(*cancelled);
  CHECK(!contains(loop.backend.names_since(1), 'c'));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("cancelling a task that decodes frees the slot after the step in progress (I5)") {
  RunningLoop loop({1, 4, 60});
  loop.backend.scripts['n'] = "next";
  loop.backend.gate.shut_after(1);
  loop.start();
  const auto cancelled = loop.submit(make_task('c', 1));
  REQUIRE(loop.backend.gate.wait_until_held());
  const size_t n_batches = loop.backend.batches().size();
  const auto next = loop.submit(make_task('n'));

  cancelled->reader().cancel();
  loop.backend.gate.open();

  CHECK(next->finish());
  CHECK_EQ(next->text(), "next");
  check_cancelled(*cancelled);
  CHECK(!contains(loop.backend.names_since(n_batches), 'c'));
}

TEST("cancelling a paused task frees its slot (I5)") {
  RunningLoop loop({1, 4, 60});
  loop.backend.scripts['n'] = "next";
  loop.start();
  const auto cancelled = loop.submit(make_task('c', 1), 8);
  CHECK(eventually([&] { return loop.stats().paused == 1; }));
  const auto next = loop.submit(make_task('n'));

  cancelled->reader().cancel();

  CHECK(next->finish());
  check_cancelled(*cancelled);
  CHECK(eventually([&] { return loop.stats().paused == 0; }));
}

TEST("cancelling ends all tasks of a reader and none of another") {
  HeldLoop loop({2, 8, 60});
  const auto cancelled = loop.submit({make_task('a'), make_task('b'), make_task('c')});
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto other = loop.submit(make_task('n'));

  cancelled->reader().cancel();
  loop.backend.gate.open();

  CHECK(cancelled->finish());
  for (size_t i = 0; i < 3; ++i) CHECK_EQ(cancelled->answer(i).finish, Finish::kCancelled);
  CHECK(other->finish());
  CHECK_EQ(other->answer().finish, Finish::kStop);
}

TEST("a reader at its limit pauses its own sequence, and nobody else's (I6)") {
  RunningLoop loop;
  loop.start();
  const auto unread = loop.submit(make_task('u', 1, 100), 8);
  const auto other = loop.submit(make_task('o', 1, 200));

  CHECK(other->finish());
  CHECK_EQ(other->text().size(), size_t{200});
  CHECK(eventually([&] {
    const LoopStats stats = loop.stats();
    return stats.paused == 1 && stats.running == 1;
  }));
  unread->take();

  CHECK_EQ(unread->text().size(), size_t{8});
  CHECK(unread->finish());
  CHECK_EQ(unread->text(), said_alone(make_task('u', 1, 100)));
}

TEST("a take lets a paused sequence go on when nothing else wakes the loop (I6)") {
  RunningLoop loop;
  loop.start();
  const auto client = loop.submit(make_task('u', 1, 40), 8);
  for (int i = 1; i < 5; ++i) {
    const auto n_tokens = static_cast<size_t>(8 * i);
    CHECK(eventually([&] {
      const LoopStats stats = loop.stats();
      return stats.paused == 1 && stats.generated_tokens == n_tokens;
    }));
    client->take();
    CHECK_EQ(client->text().size(), n_tokens);
  }

  CHECK(client->finish());
  CHECK_EQ(client->answer().finish, Finish::kLength);
}

TEST("a submit beyond the queue is refused at once and takes nothing (I6)") {
  RunningLoop loop({1, 8, 60}, 2);
  loop.backend.scripts['a'] = "done";
  loop.backend.gate.shut_after(1);
  loop.start();
  const auto running = loop.submit(make_task('r', 1, 5));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto waiting = loop.submit(make_task('a'));

  CHECK(loop.submit({make_task('x'), make_task('y')}) == nullptr);
  CHECK_EQ(loop.refusal.code(), StatusCode::kQueueFull);
  const auto last = loop.submit(make_task('a'));
  REQUIRE(last != nullptr);
  CHECK(loop.submit(make_task('x')) == nullptr);
  CHECK_EQ(loop.stats().waiting, 2);
  CHECK_EQ(loop.stats().tasks_refused, uint64_t{3});
  loop.backend.gate.open();

  for (Client* client : {running.get(), waiting.get(), last.get()}) CHECK(client->finish());
  CHECK(!contains(loop.backend.names_since(0), 'x'));
  CHECK(eventually([&] { return loop.inbox->in_flight() == 0; }));
}

TEST("cancelled tasks leave room in the queue (I6)") {
  RunningLoop loop({1, 8, 60}, 2);
  loop.start();
  for (int round = 0; round < 20; ++round) {
    const auto running = loop.submit(make_task('r', 1, 100), 8);
    CHECK(eventually([&] { return loop.stats().paused == 1; }));
    const auto waiting = loop.submit({make_task('w'), make_task('w')});
    REQUIRE(running != nullptr && waiting != nullptr);
    waiting->reader().cancel();
    CHECK(waiting->finish());
    running->reader().cancel();
    CHECK(running->finish());
    CHECK(eventually([&] { return loop.inbox->in_flight() == 0 && loop.stats().running == 0; }));
  }
}

// I9.

TEST("greedy and seeded text is the same alone and among others (I9)") {
  std::vector<Task> tasks;
  for (Token name = 'a'; name < 'a' + 10; ++name) {
    const auto n_prompt = static_cast<size_t>(name % 7 + 1) * 9;
    tasks.push_back(make_task(name, n_prompt, 30, name % 2 == 0 ? greedy() : seeded(static_cast<uint32_t>(name))));
  }
  RunningLoop loop({4, 16, 60});
  loop.start();

  std::vector<std::unique_ptr<Client>> clients;
  for (const Task& task : tasks) clients.push_back(loop.submit(task));

  for (size_t i = 0; i < tasks.size(); ++i) {
    CHECK(clients[i]->finish());
    CHECK_EQ(clients[i]->text(), said_alone(tasks[i]));
    CHECK_EQ(clients[i]->text().size(), size_t{30});
  }
}

// I10. Each of the spoilers hits the task named 'x'; the others' texts are known.

constexpr Token kSpoiled = 'x';

void check_others_survive(const std::function<void(ScriptedBackend&)>& spoil, const std::string& message) {
  std::vector<Task> tasks;
  for (const Token name : {'a', 'b', 'x', 'd', 'e', 'f'}) tasks.push_back(make_task(name, 12, 20));
  RunningLoop loop({6, 30, 60});
  spoil(loop.backend);
  loop.start();

  const auto client = loop.submit(tasks);

  CHECK(client->finish());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Answer& answer = client->answer(i);
    CHECK_EQ(answer.n_terminal, 1);
    if (tasks[i].prompt[0] == kSpoiled) {
      CHECK_EQ(answer.finish, Finish::kError);
      CHECK(answer.message.find(message) != std::string::npos);
    } else {
      CHECK_EQ(answer.finish, Finish::kLength);
      CHECK_EQ(answer.text, said_alone(tasks[i]));
    }
  }
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  const auto after = loop.submit(make_task('g', 3, 5));  // the loop lives, with all its slots
  CHECK(after->finish());
  CHECK_EQ(after->text(), said_alone(make_task('g', 3, 5)));
}

bool is_late(const Rows& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.position > 15; });
}

TEST("a prompt that makes decode fail ends its own task only (I10)") {
  check_others_survive(
      [](ScriptedBackend& backend) {
        backend.before_decode = [](const ScriptedBackend& self, const Rows& rows) {
          return self.has(rows, kSpoiled) ? Status(StatusCode::kInternal, "the batch is bad") : Status::ok();
        };
      },
      "the batch is bad");
}

TEST("a prompt that makes decode throw ends its own task only (I10)") {
  check_others_survive(
      [](ScriptedBackend& backend) {
        backend.before_decode = [](const ScriptedBackend& self, const Rows& rows) {
          if (self.has(rows, kSpoiled)) throw std::runtime_error("thrown by the model");
          return Status::ok();
        };
      },
      "thrown by the model");
}

TEST("a sequence whose step fails in the middle of its answer ends alone (I10)") {
  check_others_survive(
      [](ScriptedBackend& backend) {
        backend.before_decode = [](const ScriptedBackend& self, const Rows& rows) {
          return self.has(rows, kSpoiled) && is_late(rows) ? Status(StatusCode::kInternal, "late") : Status::ok();
        };
      },
      "late");
}

TEST("logits that are not numbers end their own sequence only (I10)") {
  check_others_survive(
      [](ScriptedBackend& backend) {
        backend.spoil = [](Token name, int32_t position, float* logits, size_t size) {
          if (name == kSpoiled && position > 14) std::fill_n(logits, size, std::numeric_limits<float>::quiet_NaN());
        };
      },
      "not numbers");
}

TEST("a batch that fails once as a whole, and not in halves, ends nobody (I10)") {
  RunningLoop loop;
  loop.backend.before_decode = [](const ScriptedBackend&, const Rows& rows) {
    return rows.size() > 1 ? Status(StatusCode::kInternal, "too much at once") : Status::ok();
  };
  loop.start();

  const auto client = loop.submit({make_task('a', 1, 9), make_task('b', 1, 9), make_task('c', 1, 9)});

  CHECK(client->finish());
  for (size_t i = 0; i < 3; ++i) {
    CHECK_EQ(client->answer(i).finish, Finish::kLength);
    CHECK_EQ(client->text(i), said_alone(make_task(static_cast<Token>('a' + i), 1, 9)));
  }
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
}

TEST("when every step fails every task ends with its error, and the loop goes on (I10)") {
  RunningLoop loop({2, 8, 60});
  loop.backend.before_decode = [](const ScriptedBackend&, const Rows&) {
    return Status(StatusCode::kInternal, "the device is gone");
  };
  loop.start();
  for (int round = 0; round < 3; ++round) {
    const auto client = loop.submit({make_task('a'), make_task('b', 100), make_task('c')});

    CHECK(client->finish());
    for (size_t i = 0; i < 3; ++i) CHECK_EQ(client->answer(i).message, "the device is gone");
  }
}

TEST("the eventfd is written once for all that a slow reader missed (I3)") {
  RunningLoop loop;
  loop.start();
  const auto slow = loop.submit(make_task('s', 1, 100));
  CHECK(eventually([&] { return loop.stats().tasks_length == 1; }));

  CHECK_EQ(loop.stats().eventfd_writes, uint64_t{1});
  slow->take();
  CHECK_EQ(slow->answer().n_chunks, 1);
  CHECK_EQ(slow->answer().n_tokens, 100);
}

TEST("draining ends what runs and what waits with its words, and refuses what comes (I4)") {
  HeldLoop loop({1, 8, 60});
  const auto running = loop.submit(make_task('r'));
  REQUIRE(loop.backend.gate.wait_until_held());
  const auto waiting = loop.submit({make_task('w'), make_task('w')});

  loop.inbox->drain("come back later");
  loop.backend.gate.open();

  CHECK(running->finish());
  CHECK(waiting->finish());
  for (const Answer& answer : {running->answer(), waiting->answer(0), waiting->answer(1)}) {
    CHECK_EQ(answer.finish, Finish::kError);
    CHECK_EQ(answer.message, "come back later");
    CHECK_EQ(answer.n_terminal, 1);
  }
  CHECK(loop.submit(make_task('x')) == nullptr);
  CHECK_EQ(loop.refusal.code(), StatusCode::kClosed);
  CHECK(!contains(loop.backend.names_since(0), 'w'));
}

// Scores of prompts.

Task scored(size_t n_prompt, int32_t max_tokens = 0) {
  Task task = make_task('s', n_prompt, max_tokens);
  task.scores_prompt = true;
  task.sampling.n_probs = 1;
  return task;
}

size_t n_told(const Answer& answer) {
  const auto& entries = answer.prompt_info.entries();
  return static_cast<size_t>(
      std::count_if(entries.begin(), entries.end(), [](const auto& entry) { return entry.n_top > 0; }));
}

TEST("every token of a prompt that is scored is told of, the first without a number") {
  RunningLoop loop;
  loop.start();
  const auto client = loop.submit(scored(200));

  REQUIRE(client->finish());
  const Answer& answer = client->answer();
  CHECK_EQ(answer.finish, Finish::kLength);
  CHECK_EQ(n_told(answer), size_t{199});
  CHECK(std::isnan(answer.prompt_info.entries()[0].logprob));
  CHECK(std::isfinite(answer.prompt_info.entries()[1].logprob));
  CHECK_EQ(answer.n_tokens, 0);
}

TEST("a prompt of one token is told of too, and an answer follows scores as it would without them") {
  RunningLoop loop;
  loop.start();
  const auto one = loop.submit(scored(1));
  const auto plain = loop.submit(make_task('s', 100, 20));
  const auto told = loop.submit(scored(100, 20));

  REQUIRE(one->finish() && plain->finish() && told->finish());
  CHECK_EQ(one->answer().prompt_info.entries().size(), size_t{1});
  CHECK_EQ(told->text(), plain->text());
}

TEST("no step scores more rows than there is room for, whoever asks, and all come to their end") {
  RunningLoop loop({8, 256, 60, 1 << 20});
  loop.backend.before_decode = [](const ScriptedBackend&, const std::vector<Row>& rows) {
    const auto n_scored = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.is_scored; });
    CHECK(n_scored <= kMostScoredRows);
    return Status::ok();
  };
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(loop.submit(scored(150)));

  for (const auto& client : clients) {
    REQUIRE(client->finish());
    CHECK_EQ(n_told(client->answer()), size_t{149});
    CHECK_EQ(client->answer().cached_tokens, 0);
  }
  CHECK(loop.backend.faults().empty());
}

TEST("a scored prompt that loses its slot on the way tells of each token once") {
  RunningLoop loop({2, 64, 60});
  int n_steps = 0;
  loop.backend.before_decode = [&n_steps](const ScriptedBackend& backend, const std::vector<Row>& rows) {
    const bool is_full = ++n_steps == 4 && backend.has(rows, 's');
    return is_full ? Status(StatusCode::kNoRoom, "full") : Status::ok();
  };
  loop.start();
  const auto other = loop.submit(make_task('o', 4, 40));
  const auto client = loop.submit(scored(150));

  REQUIRE(client->finish() && other->finish());
  CHECK_EQ(n_told(client->answer()), size_t{149});
}

TEST("scores that nobody reads hold their prompt up, not the loop") {
  RunningLoop loop({4, 64, 60});
  loop.start();
  const auto stalled = loop.submit(scored(2000), 4096);
  const auto beside = loop.submit(make_task('b', 10, 50));

  REQUIRE(beside->finish());
  REQUIRE(eventually([&] { return loop.stats().paused == 1; }));
  CHECK(stalled->reader().is_full());
  REQUIRE(stalled->finish());
  CHECK_EQ(n_told(stalled->answer()), size_t{1999});
}

TEST("what ends because the server does says so in its code") {
  RunningLoop loop;
  loop.backend.gate.shut_after(2);
  loop.start();
  const auto client = loop.submit(make_task('x'));
  REQUIRE(loop.backend.gate.wait_until_held());
  loop.inbox->drain("closing time");
  loop.backend.gate.open();

  REQUIRE(client->finish());
  CHECK_EQ(client->answer().code, "server_shutting_down");
}

TEST("what gets no slot in time ends, and who has one keeps it") {
  DecodeLoop::Limits limits{1, 8, 60};
  limits.queue_s = 0.3;
  RunningLoop loop(limits);
  loop.backend.before_decode = [](const ScriptedBackend&, const ScriptedBackend::Rows&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return Status::ok();
  };
  loop.start();
  const auto holding = loop.submit(make_task('h', 1, 200));
  REQUIRE(holding->wait());

  const auto waiting = loop.submit(make_task('w'));

  REQUIRE(waiting->finish());
  CHECK_EQ(waiting->answer().code, "queue_timeout");
  CHECK_EQ(loop.stats().running, 1);
  REQUIRE(holding->finish());
  CHECK_EQ(holding->answer().finish, Finish::kLength);
}

TEST("whose deadline passes before it has a slot is never run, also when nothing else wakes the loop") {
  RunningLoop loop({1, 8, 60});
  loop.start();
  Task late = make_task('w');
  late.priority = 9;
  late.deadline = Clock::now() + std::chrono::milliseconds(200);
  const auto client = loop.submit({make_task('h', 1, 100), std::move(late)}, 8);  // whom both wait for

  REQUIRE(eventually([&] { return loop.stats().tasks_error == 1; }));

  CHECK_EQ(loop.stats().paused, 1);
  REQUIRE(client->finish());
  CHECK_EQ(client->answer(1).code, "queue_timeout");
  CHECK_EQ(client->answer(1).n_tokens, 0);
  CHECK_EQ(client->answer(0).finish, Finish::kLength);
}

TEST("whose deadline has passed when it comes is never run") {
  RunningLoop loop({1, 8, 60});
  loop.start();
  Task task = make_task('x');
  task.deadline = Clock::now() - std::chrono::milliseconds(1);

  const auto late = loop.submit(std::move(task));

  REQUIRE(late->finish());
  CHECK_EQ(late->answer().code, "queue_timeout");
  CHECK_EQ(late->answer().slot, -1);
}

TEST("an answer ends at its deadline after what it had, and others go on") {
  RunningLoop loop({2, 8, 60});
  loop.start();
  Task task = make_task('d', 1, 100);
  task.deadline = Clock::now() + std::chrono::milliseconds(100);
  const auto timed = loop.submit(std::move(task), 8);

  REQUIRE(eventually([&] { return loop.stats().tasks_error == 1; }));
  const auto other = loop.submit(make_task('o', 1, 20));

  REQUIRE(timed->finish());
  CHECK_EQ(timed->answer().code, "deadline_exceeded");
  CHECK_EQ(timed->answer().n_tokens, 8);
  REQUIRE(other->finish());
  CHECK_EQ(other->answer().finish, Finish::kLength);
}

TEST("a reader that stays full ends its own task after what it had coming, and nobody else's (I4)") {
  DecodeLoop::Limits limits{2, 8, 60};
  limits.stall_s = 0.01;
  RunningLoop loop(limits);
  loop.start();
  const auto unread = loop.submit(make_task('u', 1, 100), 8);

  REQUIRE(eventually([&] { return loop.stats().tasks_error == 1; }));
  const auto other = loop.submit(make_task('o', 1, 20));

  REQUIRE(unread->finish());
  CHECK_EQ(unread->answer().code, "client_too_slow");
  CHECK_EQ(unread->answer().n_tokens, 8);
  REQUIRE(other->finish());
  CHECK_EQ(other->answer().finish, Finish::kLength);
}

}  // namespace
}  // namespace corosrv
