// Guesses of next tokens: no answer depends on them.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/quoting.h"
#include "fakes/running_loop.h"
#include "fakes/tasks.h"
#include "grammar/grammars.h"
#include "loop/sequence.h"
#include "model/embedded_rows.h"

namespace corosrv {
namespace {

constexpr DecodeLoop::Limits kGuessing{4, 64, 60, 1 << 20, 1, false, 0, 0, 0, 60, 16};

// Everything that a client, and the next task in the slot, may see of a task.
struct Outcome {
  Answer answer;
  std::vector<Token> tokens;
  int32_t n_computed = 0;
  uint64_t n_drafted = 0, n_accepted = 0;
};

// Runs a task as the loop would, with as many guesses in each step as `how_many` says, where there are any.
Outcome run(Task task, const HowMany& how_many, int32_t context = 300) {
  const ByteVocabulary vocabulary;
  Signals signals;
  Outcome outcome;
  LoopStats stats;
  const std::shared_ptr<Reader> reader = make_reader();
  Client client(reader);
  Sequence sequence({std::move(task), reader, Clock::now()}, vocabulary, context, signals, stats, true);
  sequence.start(0, Clock::now());
  sequence.begin(0);
  while (sequence.state() != Sequence::State::kDone) {
    const int32_t n_drafted = sequence.prospect(how_many()).n_tokens;
    if (n_drafted > 0) sequence.draft(n_drafted);
    sequence.computed(sequence.n_pending());
    std::vector<Token> tokens = sequence.tokens();
    std::vector<std::vector<float>> rows;
    for (int32_t i = 0; i <= n_drafted; ++i) {
      if (i > 0) tokens.push_back(sequence.token(static_cast<int32_t>(tokens.size())));
      rows.emplace_back(static_cast<size_t>(vocabulary.size()));
      fill(tokens, rows.back());
    }
    CHECK(static_cast<int32_t>(tokens.size()) < context || n_drafted == 0);
    std::vector<RowLogits> logits;
    for (auto& row : rows) logits.emplace_back(row.data());
    sequence.choose(logits.data());
    sequence.take(Clock::now());
    CHECK_EQ(sequence.n_drafted(), 0);
  }
  client.take();
  outcome.answer = client.answer();
  outcome.tokens = sequence.tokens();
  outcome.n_computed = sequence.n_computed();
  outcome.n_drafted = stats.draft_tokens;
  outcome.n_accepted = stats.draft_accepted_tokens;
  return outcome;
}

void check_same(const std::string& name, const Outcome& plain, const Outcome& guessed) {
  const auto same = [&](const char* what, const auto& a, const auto& b) {
    if (!(a == b)) check::fail(__FILE__, __LINE__, name + ": not the same " + what);
  };
  same("text", plain.answer.text, guessed.answer.text);
  same("message", plain.answer.message, guessed.answer.message);
  same("code", plain.answer.code, guessed.answer.code);
  same("end", plain.answer.finish, guessed.answer.finish);
  same("stop string", plain.answer.stopping_word, guessed.answer.stopping_word);
  same("number of tokens", plain.answer.n_tokens, guessed.answer.n_tokens);
  same("number of terminal chunks", plain.answer.n_terminal, guessed.answer.n_terminal);
  same("likelihoods", plain.answer.tokens, guessed.answer.tokens);
  same("dropped tokens", plain.answer.n_dropped, guessed.answer.n_dropped);
  same("tokens", plain.tokens, guessed.tokens);
  same("tokens in the slot", plain.n_computed, guessed.n_computed);
}

TEST("with guesses every sampler draws, bit for bit, what it draws without them") {
  uint64_t n_accepted = 0, n_drafted = 0;
  for (const auto& [name, task] : all_samplers()) {
    const Outcome plain = run(task, none);
    for (const uint32_t seed : {1u, 2u}) {
      const Outcome guessed = run(task, any_number(seed));
      check_same(name, plain, guessed);
      n_accepted += guessed.n_accepted;
      n_drafted += guessed.n_drafted;
      CHECK_EQ(guessed.answer.drafted_tokens, static_cast<int32_t>(guessed.n_drafted));
      CHECK_EQ(guessed.answer.accepted_tokens, static_cast<int32_t>(guessed.n_accepted));
    }
    CHECK_EQ(plain.n_drafted, uint64_t{0});
  }

  CHECK(n_accepted > 500);
  CHECK(n_drafted - n_accepted > 500);
}

// In the loop: the scripted model notes a fault where a slot holds another token than it should.

void slow_down(RunningLoop& loop) {
  loop.time = std::make_unique<ScriptedTime>();
  loop.backend.before_decode = [&time = *loop.time](const ScriptedBackend&, const ScriptedBackend::Rows&) {
    time.pass(300);  // so that a row costs little of a step
    return Status::ok();
  };
}

const std::string kRefrain = "row, row, row your boat, gently row your boat, row, row, row your boat";

size_t most_rows_of_a_slot(const RunningLoop& loop) {
  size_t most = 0;
  for (const auto& rows : loop.backend.batches()) {
    const auto n = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.wants_logits; });
    most = std::max(most, static_cast<size_t>(n));
  }
  return most;
}

TEST("a text that repeats itself comes in fewer steps, and is the same") {
  RunningLoop loop(kGuessing);
  slow_down(loop);
  loop.backend.scripts['a'] = kRefrain;
  loop.start();

  const auto client = loop.submit(make_task('a', 3));

  CHECK(client->finish());
  CHECK_EQ(client->text(), kRefrain);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  CHECK(eventually([&] { return loop.stats().running == 0; }));
  CHECK_EQ(loop.stats().generated_tokens, kRefrain.size() + 1);
  CHECK(loop.stats().draft_accepted_tokens > 10);
  CHECK(loop.stats().draft_tokens > loop.stats().draft_accepted_tokens);
  CHECK_EQ(loop.stats().steps, kRefrain.size() + 1 - loop.stats().draft_accepted_tokens);
}

TEST("an answer that was expected comes in few steps") {
  RunningLoop loop(kGuessing);
  slow_down(loop);
  loop.backend.scripts['a'] = "nothing of this comes twice";
  loop.start();
  Task task = make_task('a', 3);
  const std::string expected = "nothing of that comes twice";
  task.prediction.assign(expected.begin(), expected.end());

  const auto client = loop.submit(task);

  CHECK(client->finish());
  CHECK_EQ(client->text(), "nothing of this comes twice");
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  CHECK(client->answer().accepted_tokens > 12);
  CHECK(client->answer().drafted_tokens > client->answer().accepted_tokens);
}

TEST("nobody guesses who was not told to, whose slot cannot be cut, or whose prompt has embedding rows") {
  Task with_rows = make_task(0, 1, 60);
  with_rows.prompt = {'a', -2, 'b'};
  with_rows.rows = std::make_shared<EmbeddedRows>(with_rows.prompt, 1, std::vector<float>{1});
  const std::vector<Token> expected(60, 'a');
  for (const int which : {0, 1, 2}) {
    DecodeLoop::Limits limits = kGuessing;
    if (which == 0) limits.drafted_rows = 0;
    RunningLoop loop(limits);
    slow_down(loop);
    if (which == 1) loop.backend.can_save = false;
    loop.backend.scripts['a'] = kRefrain;
    loop.start();
    Task task = which == 2 ? with_rows : make_task('a', 3, 60);
    task.prediction = expected;
    const auto client = loop.submit(task);
    CHECK(client->finish());

    CHECK_EQ(loop.stats().draft_tokens, uint64_t{0});
    CHECK_EQ(most_rows_of_a_slot(loop), size_t{1});
  }
}

TEST("no guess stands beyond the context, the rows of a step, or a step's share of guesses") {
  for (const int32_t rows : {4, 64}) {
    DecodeLoop::Limits limits = kGuessing;
    limits.rows = rows;
    RunningLoop loop(limits, 1000, 64);
    slow_down(loop);
    loop.backend.scripts['a'] = repeated("ab", 100);
    loop.start();
    Task task = make_task('a', 3);
    task.prediction.assign(200, 'a');
    for (size_t i = 1; i < 200; i += 2) task.prediction[i] = 'b';

    const auto client = loop.submit(task);

    CHECK(client->finish());
    CHECK_EQ(client->answer().finish, Finish::kLength);
    CHECK_EQ(client->answer().n_tokens, 61);
    CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
    CHECK(most_rows_of_a_slot(loop) > 2);
    for (const auto& batch : loop.backend.batches()) {
      CHECK(batch.size() <= static_cast<size_t>(std::min(rows, 1 + limits.drafted_rows)));
      for (const Row& row : batch) CHECK(row.position < 64);
    }
  }
}

TEST("what all slots share is never filled by guesses") {
  DecodeLoop::Limits limits = kGuessing;
  limits.shared_cells = 160;
  RunningLoop loop(limits, 1000, 160);
  slow_down(loop);
  loop.backend.shared_cells = 160;
  loop.start();
  std::vector<std::unique_ptr<Client>> clients;
  for (const Token name : {'a', 'b'}) {
    Task task = make_task(name, 3, 120);
    const std::string expected = said_alone(task);
    task.prediction.assign(expected.begin(), expected.end());
    clients.push_back(loop.submit(task));
  }

  for (const auto& client : clients) CHECK(client->finish());
  CHECK_EQ(clients[0]->text(), said_alone(make_task('a', 3, 120)));
  CHECK_EQ(clients[1]->text(), said_alone(make_task('b', 3, 120)));
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  CHECK(loop.stats().draft_accepted_tokens > 0);
}

TEST("a step that reads a prompt has no guesses") {
  DecodeLoop::Limits limits = kGuessing;
  limits.slots = 2;
  RunningLoop loop(limits);
  slow_down(loop);
  loop.backend.scripts['a'] = kRefrain;
  loop.start();
  Task expected = make_task('a', 3);
  expected.prediction.assign(kRefrain.begin(), kRefrain.end());
  loop.backend.gate.shut_after(2);
  const auto first = loop.submit(expected);
  CHECK(loop.backend.gate.wait_until_held());
  const auto second = loop.submit(make_task('b', 300, 9));
  loop.backend.gate.open();
  CHECK(first->finish());
  CHECK(second->finish());

  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  for (const auto& rows : loop.backend.batches()) {
    const auto n_with = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.wants_logits; });
    if (static_cast<size_t>(n_with) < rows.size()) CHECK(n_with <= 2);
  }
}

TEST("a guess is never to blame: what fails with guesses is computed without them (I10)") {
  RunningLoop loop(kGuessing);
  loop.time = std::make_unique<ScriptedTime>();
  int n_failed = 0;
  loop.backend.before_decode = [&](const ScriptedBackend&, const ScriptedBackend::Rows& rows) {
    loop.time->pass(300);
    const auto n_with = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.wants_logits; });
    if (n_with < 3) return Status::ok();
    ++n_failed;
    return Status(StatusCode::kInternal, "too many rows");
  };
  loop.backend.scripts['a'] = kRefrain;
  loop.start();

  const auto client = loop.submit(make_task('a', 3));

  CHECK(client->finish());
  CHECK_EQ(client->answer().finish, Finish::kStop);
  CHECK_EQ(client->text(), kRefrain);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  CHECK(n_failed > 0);
}

TEST("a guess that was wrong has left the slot when its answer ends: the next one that begins like it finds no trace") {
  RunningLoop loop(kGuessing);
  slow_down(loop);
  loop.backend.scripts['a'] = kRefrain;
  loop.start();
  Task stopped = make_task('a', 3);
  stopped.stops = {"ently"};
  stopped.prediction.assign(kRefrain.begin(), kRefrain.end());
  const auto first = loop.submit(stopped);
  CHECK(first->finish());
  Task longer = make_task('a', 3);
  longer.prompt.insert(longer.prompt.end(), kRefrain.begin(), kRefrain.begin() + 10);

  const auto second = loop.submit(longer);

  CHECK(second->finish());
  CHECK_EQ(first->text(), "row, row, row your boat, g");
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  CHECK(second->answer().cached_tokens >= 12);
}

}  // namespace
}  // namespace corosrv
