// Tasks that go on where an earlier engine stopped: nobody sees from the answer that it did.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/quoting.h"
#include "fakes/running_loop.h"
#include "fakes/sharing.h"
#include "fakes/tasks.h"
#include "grammar/grammars.h"
#include "loop/output.h"
#include "loop/progress.h"
#include "loop/sequence.h"
#include "loop/sequence_request.h"
#include "sampling/dry.h"

namespace corosrv {
namespace {

constexpr int32_t kContext = 300;
constexpr size_t kMostCuts = 40;

// An engine of one sequence, which dies whenever the test lets go of it.
class Life {
 public:
  explicit Life(Task task, int32_t context = kContext)
      : reader_(make_reader()), client_(reader_), context_(static_cast<size_t>(context)) {
    task.tells_state = true;
    sequence_ = std::make_unique<Sequence>(Submission{std::move(task), reader_, Clock::now()}, vocabulary_, context,
                                           signals_, stats_, true);
    sequence_->start(0, Clock::now());
    sequence_->begin(0);
  }

  bool is_over() const { return sequence_->state() == Sequence::State::kDone; }

  // A step with as many guesses as it may have of these; the client reads when it is over.
  void step(int32_t most_guesses, bool is_read = true) {
    if (sequence_->is_full()) sequence_->shift();
    const int32_t n_drafted = sequence_->prospect(most_guesses).n_tokens;
    if (n_drafted > 0) sequence_->draft(n_drafted);
    sequence_->computed(sequence_->n_pending());
    if (!is_over()) draw(n_drafted);
    if (is_read) client_.take();
  }

  // To its end.
  const Answer& run() {
    while (!is_over()) step(0);
    client_.take();
    return answer();
  }

  void drain() {
    sequence_->finish(Finish::kError, "the server is shutting down");
    client_.take();
  }

  const Answer& answer() const { return client_.answer(); }
  const LoopStats& stats() const { return stats_; }
  const Sequence& sequence() const { return *sequence_; }

 private:
  void draw(int32_t n_drafted) {
    std::vector<Token> tokens = sequence_->tokens();
    std::vector<std::vector<float>> rows;
    for (int32_t i = 0; i <= n_drafted; ++i) {
      if (i > 0) tokens.push_back(sequence_->token(static_cast<int32_t>(tokens.size())));
      CHECK(tokens.size() < context_ || n_drafted == 0);
      rows.emplace_back(static_cast<size_t>(vocabulary_.size()));
      fill(tokens, rows.back());
      if (tokens[0] == 'u') say_long_characters(tokens.back(), rows.back());
    }
    std::vector<RowLogits> logits;
    for (auto& row : rows) logits.emplace_back(row.data());
    sequence_->choose(logits.data());
    sequence_->take(Clock::now());
  }

  // Of two and three bytes, and some that break off.
  static void say_long_characters(Token last, std::vector<float>& logits) {
    logits[0xC3] = 2;
    logits[0xE2] = 2;
    if (last == 0xC3) logits[0xA9] = 5;
    if (last == 0xE2) logits[0x82] = 5;
    if (last == 0x82) logits[0xAC] = 5;
  }

  const ByteVocabulary vocabulary_;
  Signals signals_;
  LoopStats stats_;
  const std::shared_ptr<Reader> reader_;
  Client client_;
  const size_t context_;
  std::unique_ptr<Sequence> sequence_;
};

// What a front has of a task that it has to bring to its end.
struct Journal {
  std::vector<Token> ids;
  std::string text;
  TokenList tokens;
  SamplerState state{};
  int32_t n_tokens = 0;

  void add(const Answer& answer) {
    ids.insert(ids.end(), answer.ids.begin(), answer.ids.end());
    text += answer.text;
    tokens.append(answer.tokens);
    if (!answer.ids.empty()) state = answer.state;
    n_tokens += answer.n_tokens;
  }
  Task resumed(Task task) const {
    task.earlier = {ids, text.size(), state};
    return task;
  }
};

// Whether every token's likelihood has to be there: those of a token are lost whose text was not certain when its id
// was told.
enum class Told { kAll, kSome };

void check_same(const std::string& name, const Answer& whole, Journal before, const Answer& rest, Told told) {
  before.add(rest);
  const auto same = [&](const char* what, const auto& a, const auto& b) {
    if (!(a == b)) check::fail(__FILE__, __LINE__, name + ": not the same " + what);
  };
  same("text", whole.text, before.text);
  same("tokens", whole.ids, before.ids);
  same("number of tokens", whole.n_tokens, before.n_tokens);
  same("end", whole.finish, rest.finish);
  same("message", whole.message, rest.message);
  same("code", whole.code, rest.code);
  same("stop string", whole.stopping_word, rest.stopping_word);
  same("prompt", whole.prompt_tokens, rest.prompt_tokens);
  same("number of terminal chunks", rest.n_terminal, 1);
  if (told == Told::kAll) same("likelihoods", whole.tokens, before.tokens);
}

std::vector<Named> all_tasks() {
  static const ByteVocabulary vocabulary;
  std::vector<Named> all = all_samplers();
  for (Named& named : all) {
    if (!named.task.shift) named.task.max_tokens = std::min(named.task.max_tokens, 80);
  }
  const auto add = [&](const char* name, const std::function<void(Sampling&, Task&)>& change) {
    for (const uint32_t seed : {1u, 2u, 3u}) {
      Sampling sampling;
      sampling.seed = seed;
      Task task = make_quoting(sampling, 80);
      change(task.sampling, task);
      all.push_back({name + std::string(" ") + std::to_string(seed), std::move(task)});
    }
  };
  add("half characters", [](Sampling&, Task& task) { task.prompt[0] = 'u'; });
  add("half characters and stops", [](Sampling&, Task& task) {
    task.prompt[0] = 'u';
    task.stops = {"\xC3\xA9\xC3\xA9", "\xE2\x82\xAC\n"};
  });
  add("dry with breakers", [](Sampling& s, Task&) {
    s.dry_multiplier = 0.8f;
    s.dry_breakers = std::make_shared<const DryBreakers>(std::vector<std::string>{"a", "bc"}, vocabulary);
  });
  add("xtc behind mirostat", [](Sampling& s, Task&) { s.mirostat = 2, s.xtc_probability = 0.5f; });
  add("thoughts that a grammar keeps from ending", [](Sampling& s, Task&) {
    s.grammar = make_grammar("root ::= [a-h]{6} [a-h</t>]*", vocabulary);
    s.thoughts = {5, "", "</t>", {'<', '/', 't', '>'}};
  });
  add("a grammar that thoughts may begin", [](Sampling& s, Task&) {
    s.grammar = make_grammar("root ::= \"ba\" [abc]+", vocabulary);
    s.grammar_triggers = {"ba"};
    s.thoughts = {12, "", "</t>", {'<', '/', 't', '>'}};
  });
  add("thoughts that the answer begins", [](Sampling& s, Task&) {
    s.thoughts = {9, "a", "h", {'<', '/', 't', '>'}};
    s.biases = {{'a', 3.0f}};
  });
  return all;
}

// Tells whether a sequence of these tokens has dropped some, and cannot be resumed.
bool has_shifted(const Task& task, const Journal& journal) {
  return task.shift && task.prompt.size() + journal.ids.size() >= static_cast<size_t>(kContext);
}

Told told_of(const Task& task) { return task.stops.empty() && task.prompt[0] != 'u' ? Told::kAll : Told::kSome; }

// Each of a sampler's seeds has a third of the cuts.
TEST("with every sampler a task goes on behind any of its chunks, bit for bit, as if nothing had happened") {
  size_t n_tasks = 0;
  for (const auto& [name, task] : all_tasks()) {
    ++n_tasks;
    Life whole(task);
    whole.run();
    Life broken(task);
    for (size_t n_cuts = 0; n_cuts < kMostCuts && !broken.is_over(); ++n_cuts) {
      broken.step(0);
      Journal journal;
      journal.add(broken.answer());
      if (broken.is_over() || has_shifted(task, journal)) break;
      if (journal.ids.empty() || (n_cuts + n_tasks) % 3 != 0) continue;

      Life resumed(journal.resumed(task));

      check_same(name + " behind " + std::to_string(journal.ids.size()), whole.answer(), journal, resumed.run(),
                 told_of(task));
    }
  }
}

TEST("an engine that dies again and again, with guesses or without them, ends with the same answer") {
  for (const auto& [name, task] : all_tasks()) {
    Life whole(task);
    whole.run();
    for (const uint32_t seed : {1u, 2u}) {
      const HowMany how_many = any_number(seed);
      Journal journal;
      auto life = std::make_unique<Life>(task);
      while (!life->is_over()) {
        for (int32_t n_steps = 1 + how_many(); n_steps > 0 && !life->is_over(); --n_steps) life->step(how_many());
        if (life->is_over()) break;
        Journal longer = journal;
        longer.add(life->answer());
        if (has_shifted(task, longer)) {
          life->run();
          break;
        }
        journal = std::move(longer);
        life = std::make_unique<Life>(journal.ids.empty() ? task : journal.resumed(task));
      }
      check_same(name, whole.answer(), journal, life->answer(), told_of(task));
    }
  }
}

TEST("chunks that nobody has read merge: their ids belong to the newest state") {
  for (const auto& [name, task] : all_tasks()) {
    Life whole(task);
    whole.run();
    Life broken(task);
    for (int n_steps = 0; n_steps < 9 && !broken.is_over(); ++n_steps) broken.step(n_steps, false);
    if (broken.is_over()) continue;
    broken.step(3);
    Journal journal;
    journal.add(broken.answer());
    if (broken.is_over() || journal.ids.empty()) continue;

    Life resumed(journal.resumed(task));

    check_same(name, whole.answer(), journal, resumed.run(), told_of(task));
  }
}

TEST("a task that an engine has ended with an error goes on in another one") {
  for (const auto& [name, task] : all_tasks()) {
    Life whole(task);
    whole.run();
    Life broken(task);
    for (int n_steps = 0; n_steps < 20 && !broken.is_over(); ++n_steps) broken.step(0, false);
    if (broken.is_over()) continue;
    broken.drain();
    Journal journal;
    journal.add(broken.answer());
    CHECK_EQ(journal.ids.size(), size_t{20});

    Life resumed(journal.resumed(task));

    check_same(name, whole.answer(), journal, resumed.run(), Told::kSome);
  }
}

TEST("text that was not sent comes first, and bytes that were sent never again") {
  const Task task = make_quoting(greedy(), 30);
  Life whole(task);
  const std::string text = whole.run().text;
  Life broken(task);
  for (int i = 0; i < 10; ++i) broken.step(0);
  Journal journal;
  journal.add(broken.answer());
  for (const size_t n_sent : {size_t{0}, size_t{1}, journal.text.size()}) {
    Task again = journal.resumed(task);
    again.earlier.n_sent = n_sent;

    Life resumed(again);

    CHECK_EQ(resumed.run().text, text.substr(n_sent));
  }
}

TEST("what counts is the whole task, what was drawn is what was drawn here") {
  const Task task = make_quoting(greedy(), 30);
  Life broken(task);
  for (int i = 0; i < 10; ++i) broken.step(0);
  Journal journal;
  journal.add(broken.answer());

  Life resumed(journal.resumed(task));
  CHECK_EQ(resumed.sequence().describe().generated_tokens, 10);
  const Answer& rest = resumed.run();

  CHECK_EQ(rest.finish, Finish::kLength);
  CHECK_EQ(rest.n_tokens, 20);
  CHECK_EQ(rest.prompt_tokens, static_cast<int32_t>(task.prompt.size()));
  CHECK_EQ(resumed.stats().generated_tokens, uint64_t{20});
  CHECK_EQ(resumed.stats().prompt_tokens, uint64_t{task.prompt.size()});
  CHECK_EQ(resumed.stats().later_tokens, uint64_t{19});
  CHECK_EQ(resumed.stats().longest_task, uint64_t{task.prompt.size() + 30});
  CHECK(resumed.stats().prompt_s >= 0);
}

TEST("a task whose last token was drawn ends where it ended") {
  const Task task = make_quoting(greedy(), 30);
  Life whole(task);
  Journal journal;
  journal.add(whole.run());

  Life resumed(journal.resumed(task));

  CHECK_EQ(resumed.run().finish, Finish::kLength);
  CHECK_EQ(resumed.answer().text, "");
  CHECK_EQ(resumed.answer().n_tokens, 0);
}

// One token at a time: between two of a step, the reader may be read.
TEST("no chunk but the last has ids that end with a stop string, and each has the state behind its ids") {
  Task task = make_task('p');
  task.tells_state = true;
  task.stops = {"ef"};
  const std::shared_ptr<Reader> reader = make_reader();
  const SequenceRequest request({task, reader, Clock::now()});
  const Progress progress(task.prompt, {}, Clock::now());
  Signals signals;
  Output output(reader, signals, request, progress, task.stops);
  std::vector<Chunk> taken;
  const auto add = [&](Token id, const char* text) {
    SamplerState state;
    state.fill(static_cast<uint8_t>(id));
    output.add(id, text, {}, state);
    reader->take(taken);
  };

  add(1, "d");
  REQUIRE(taken.size() == 1);
  CHECK_EQ(taken[0].ids, std::vector<Token>{1});
  CHECK_EQ(int{taken[0].state[0]}, 1);
  add(2, "e");
  CHECK(taken.empty());
  add(3, "e");
  REQUIRE(taken.size() == 1);
  CHECK_EQ(taken[0].ids, (std::vector<Token>{2, 3}));
  CHECK_EQ(int{taken[0].state[0]}, 3);
  add(4, "gef");
  CHECK(taken.empty());
  output.finish(Finish::kStop, "", "", {}, 0);
  reader->take(taken);
  REQUIRE(taken.size() == 1);
  CHECK_EQ(taken[0].ids, std::vector<Token>{4});
  CHECK_EQ(taken[0].text, "eg");
}

TEST("the text before a stop string comes with the last chunk") {
  Task task = make_quoting(greedy(), 60);
  Life unstopped(task);
  const std::string text = unstopped.run().text;
  task.stops = {text.substr(20, 3)};

  Life life(task);

  CHECK_EQ(life.run().text, text.substr(0, text.find(task.stops[0])));
  CHECK_EQ(life.answer().finish, Finish::kStop);
}

TEST("time begins anew with the first token that is drawn here") {
  const auto submitted = Clock::now() - std::chrono::seconds(60);
  Progress progress({'p', 'q'}, {'a'}, submitted);
  progress.start(submitted + std::chrono::seconds(1));
  CHECK_EQ(progress.prompt_ms(), 0.0);

  progress.add('b', submitted + std::chrono::seconds(3));
  progress.add('c', submitted + std::chrono::seconds(6));

  CHECK_EQ(progress.prompt_ms(), 2000.0);
  CHECK_EQ(progress.decode_ms(), 3000.0);
  CHECK_EQ(progress.seconds_of_generating(submitted + std::chrono::seconds(7)), 4.0);
}

TEST("the prompt's scores are not told again") {
  Task task = make_quoting(greedy(), 30);
  task.sampling.n_probs = 0;
  task.scores_prompt = true;
  task.earlier.tokens = {'a'};

  const Life resumed(task);

  CHECK(!resumed.sequence().scores_prompt());
  CHECK(resumed.sequence().shares_prefix());
}

TEST("nothing is told of ids and state unless it is asked for") {
  RunningLoop loop;
  loop.start();
  const auto client = loop.submit(make_task('a', 3, 8));
  CHECK(client->finish());

  CHECK_EQ(client->answer().ids, std::vector<Token>{});
}

// In the loop: the scripted model makes its text up from all tokens, and notes a fault where a slot holds others.

TEST("a resumed task begins from what the cache holds of its prompt and its answer") {
  RunningLoop loop(sharing(2));
  loop.start();
  Task task = task_with(40, "abc", 60);
  task.sampling.temperature = 1;
  task.tells_state = true;
  const auto whole = loop.submit(task);
  CHECK(whole->finish());
  CHECK(eventually([&] { return loop.stats().running == 0; }));
  Task shorter = task;
  shorter.max_tokens = 35;
  const auto broken = loop.submit(shorter);
  CHECK(broken->finish());
  const Answer& before = broken->answer();
  task.earlier = {before.ids, before.text.size(), before.state};

  const auto resumed = loop.submit(task);

  CHECK(resumed->finish());
  CHECK_EQ(before.text + resumed->text(), whole->text());
  CHECK_EQ(resumed->answer().cached_tokens, 43);
  CHECK_EQ(resumed->answer().prompt_tokens, 43);
  CHECK_EQ(loop.backend.faults(), std::vector<std::string>{});
  CHECK_EQ(loop.backend.batches().back().size(), size_t{1});
  CHECK_EQ(loop.backend.cuts().back().n_tokens, 43 + 34);
}

}  // namespace
}  // namespace corosrv
