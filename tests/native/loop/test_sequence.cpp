#include <fcntl.h>
#include <sys/wait.h>

#include <csignal>
#include <functional>
#include <limits>
#include <numeric>
#include <thread>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/client.h"
#include "fakes/tasks.h"
#include "grammar/grammars.h"
#include "loop/sequence.h"

namespace corosrv {
namespace {

using State = Sequence::State;

constexpr Token kEnd = ByteVocabulary::kEnd;

// A sequence, driven by hand as the decode loop would, and the client that reads it.
class Driven {
 public:
  explicit Driven(Task task, int32_t context = 100, std::vector<std::string> words = {})
      : vocabulary_(std::move(words)), reader_(make_reader()), client(reader_) {
    sequence = std::make_unique<Sequence>(Submission{std::move(task), reader_, Clock::now()}, vocabulary_, context,
                                          signals_, stats);
  }

  // Gets a slot and reads the whole prompt.
  Driven& prefill() {
    sequence->start(0, Clock::now());
    sequence->begin(0);
    sequence->computed(sequence->n_pending());
    return *this;
  }

  // Draws `token` and computes it.
  Driven& draw(Token token) {
    std::vector<float> logits(static_cast<size_t>(vocabulary_.size()), 0.0f);
    logits[static_cast<size_t>(token)] = 9;
    choose_next(*sequence, logits);
    sequence->take(Clock::now());
    if (sequence->state() == State::kDecoding) sequence->computed(1);
    return *this;
  }
  Driven& say(const std::string& text) {
    for (const char letter : text) draw(static_cast<uint8_t>(letter));
    return *this;
  }

  const Answer& answer() {
    client.take();
    return client.answer();
  }
  State state() const { return sequence->state(); }

 private:
  const ByteVocabulary vocabulary_;
  Signals signals_;
  const std::shared_ptr<Reader> reader_;

 public:
  LoopStats stats;
  Client client;
  std::unique_ptr<Sequence> sequence;
};

Task with_stops(std::vector<std::string> stops, int32_t max_tokens = -1) {
  Task task = make_task('p', 1, max_tokens);
  task.stops = std::move(stops);
  return task;
}

// The table: what each move makes of each state. Refused moves are bugs and end the program.
enum class Outcome { kWaiting, kStarting, kPrefilling, kDecoding, kDone, kRefused };

struct Move {
  const char* name;
  std::function<void(Driven&)> make;
  Outcome from_waiting, from_starting, from_prefilling, from_decoding, from_done;
};

const std::vector<Move> kMoves = {
    {"start", [](Driven& driven) { driven.sequence->start(1, Clock::now()); },  //
     Outcome::kStarting, Outcome::kRefused, Outcome::kRefused, Outcome::kRefused, Outcome::kRefused},
    {"begin", [](Driven& driven) { driven.sequence->begin(1); },  //
     Outcome::kRefused, Outcome::kPrefilling, Outcome::kRefused, Outcome::kRefused, Outcome::kRefused},
    {"begin with all that is known", [](Driven& driven) { driven.sequence->begin(3); },  //
     Outcome::kRefused, Outcome::kRefused, Outcome::kRefused, Outcome::kRefused, Outcome::kRefused},
    {"computed, a part", [](Driven& driven) { driven.sequence->computed(0); },  //
     Outcome::kWaiting, Outcome::kStarting, Outcome::kPrefilling, Outcome::kDecoding, Outcome::kDone},
    {"computed, all", [](Driven& driven) { driven.sequence->computed(driven.sequence->n_pending()); },  //
     Outcome::kWaiting, Outcome::kStarting, Outcome::kDecoding, Outcome::kDecoding, Outcome::kDone},
    {"computed, more than there is",  //
     [](Driven& driven) { driven.sequence->computed(driven.sequence->n_pending() + 1); }, Outcome::kRefused,
     Outcome::kRefused, Outcome::kRefused, Outcome::kRefused, Outcome::kRefused},
    {"draw", [](Driven& driven) { driven.draw('x'); },  //
     Outcome::kWaiting, Outcome::kStarting, Outcome::kPrefilling, Outcome::kDecoding, Outcome::kDone},
    {"draw the end", [](Driven& driven) { driven.draw(kEnd); },  //
     Outcome::kWaiting, Outcome::kStarting, Outcome::kPrefilling, Outcome::kDone, Outcome::kDone},
    {"preempt", [](Driven& driven) { driven.sequence->preempt(); },  //
     Outcome::kRefused, Outcome::kWaiting, Outcome::kWaiting, Outcome::kWaiting, Outcome::kRefused},
    {"finish", [](Driven& driven) { driven.sequence->finish(Finish::kCancelled); },  //
     Outcome::kDone, Outcome::kDone, Outcome::kDone, Outcome::kDone, Outcome::kDone},
};

std::unique_ptr<Driven> bring_to(State state) {
  auto driven = std::make_unique<Driven>(make_task('p', 3));
  if (state == State::kStarting || state == State::kPrefilling) driven->sequence->start(0, Clock::now());
  if (state == State::kPrefilling) driven->sequence->begin(0);
  if (state == State::kDecoding || state == State::kDone) driven->prefill();
  if (state == State::kDone) driven->draw(kEnd);
  return driven;
}

// Whether the move ends a process that makes it. The child says nothing about it.
bool aborts(const std::function<void()>& move) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);
    move();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(child > 0 && ::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

void check_move(const Move& move, State from, Outcome expected) {
  const auto driven = bring_to(from);
  if (expected == Outcome::kRefused) {
    if (!aborts([&] { move.make(*driven); })) check::fail(__FILE__, __LINE__, std::string("not refused: ") + move.name);
    return;
  }
  move.make(*driven);
  (void)check::equal(static_cast<int>(driven->state()), static_cast<int>(expected), move.name, __FILE__, __LINE__);
}

TEST("each move makes of each state what the table says, or is refused") {
  for (const Move& move : kMoves) {
    check_move(move, State::kWaiting, move.from_waiting);
    check_move(move, State::kStarting, move.from_starting);
    check_move(move, State::kPrefilling, move.from_prefilling);
    check_move(move, State::kDecoding, move.from_decoding);
    check_move(move, State::kDone, move.from_done);
  }
}

TEST("there is exactly one terminal chunk, whoever ends a sequence again (I4)") {
  for (const State state : {State::kWaiting, State::kStarting, State::kPrefilling, State::kDecoding, State::kDone}) {
    const auto driven = bring_to(state);
    driven->client.take();
    driven->sequence->finish(Finish::kCancelled);
    driven->client.take();
    driven->sequence->finish(Finish::kError, "again");
    driven->draw('x');
    driven->sequence.reset();

    CHECK_EQ(driven->answer().n_terminal, 1);
    CHECK_EQ(driven->answer().n_late, 0);
    CHECK_EQ(driven->answer().finish, state == State::kDone ? Finish::kStop : Finish::kCancelled);
  }
}

TEST("a sequence that is dropped ends its task with an error, in every state (I4)") {
  for (const State state : {State::kWaiting, State::kStarting, State::kPrefilling, State::kDecoding}) {
    const auto driven = bring_to(state);

    driven->sequence.reset();

    CHECK_EQ(driven->answer().n_terminal, 1);
    CHECK_EQ(driven->answer().finish, Finish::kError);
    CHECK(!driven->answer().message.empty());
    CHECK_EQ(driven->stats.tasks_error, uint64_t{1});
  }
}

TEST("text comes token by token, and the end token counts though it has no text") {
  Driven driven(make_task('p', 3));
  driven.prefill().say("hi");
  CHECK_EQ(driven.answer().text, "hi");
  CHECK_EQ(driven.answer().n_tokens, 2);

  driven.draw(kEnd);

  CHECK_EQ(driven.answer().text, "hi");
  CHECK_EQ(driven.answer().n_tokens, 3);
  CHECK_EQ(driven.answer().finish, Finish::kStop);
  CHECK_EQ(driven.answer().prompt_tokens, 3);
  CHECK_EQ(driven.stats.tasks_stop, uint64_t{1});
  CHECK_EQ(driven.stats.generated_tokens, uint64_t{3});
  CHECK_EQ(driven.stats.prompt_tokens, uint64_t{3});
}

TEST("an end token that has a text does not show it (I4)") {
  Driven driven(make_task('p'), 100, {std::string(ByteVocabulary::kSpokenEnd)});

  driven.prefill().say("hi").draw(ByteVocabulary::kFirstWord);

  CHECK_EQ(driven.answer().text, "hi");
  CHECK_EQ(driven.answer().finish, Finish::kStop);
  CHECK_EQ(driven.answer().n_late, 0);
}

TEST("max_tokens 0 reads the prompt and ends") {
  Driven driven(make_task('p', 3, 0));

  driven.prefill();

  CHECK_EQ(driven.answer().finish, Finish::kLength);
  CHECK_EQ(driven.answer().n_tokens, 0);
  CHECK_EQ(driven.answer().text, "");
  CHECK_EQ(driven.answer().prompt_tokens, 3);
}

TEST("max_tokens 1 ends with the first token") {
  Driven driven(make_task('p', 3, 1));

  driven.prefill().draw('x');

  CHECK_EQ(driven.answer().finish, Finish::kLength);
  CHECK_EQ(driven.answer().text, "x");
  CHECK_EQ(driven.answer().n_tokens, 1);
}

TEST("an end token at the last of max_tokens is a stop") {
  Driven driven(make_task('p', 3, 1));

  driven.prefill().draw(kEnd);

  CHECK_EQ(driven.answer().finish, Finish::kStop);
}

TEST("a full context ends with length") {
  Driven driven(make_task('p', 3), 5);

  driven.prefill().say("ab");

  CHECK_EQ(driven.state(), State::kDone);
  CHECK_EQ(driven.answer().finish, Finish::kLength);
  CHECK_EQ(driven.answer().text, "ab");
}

TEST("a stop string across tokens ends the sequence, and neither it nor what follows shows") {
  Driven driven(with_stops({"STOP"}));

  driven.prefill().say("one ST");
  CHECK_EQ(driven.answer().text, "one ");
  driven.say("OP");

  CHECK_EQ(driven.answer().text, "one ");
  CHECK_EQ(driven.answer().finish, Finish::kStop);
  CHECK_EQ(driven.answer().n_tokens, 8);
}

TEST("a token that goes on after the stop string is cut") {
  Driven driven(with_stops({"STOP"}), 100, {"a STOP b"});

  driven.prefill().draw(ByteVocabulary::kFirstWord);

  CHECK_EQ(driven.answer().text, "a ");
  CHECK_EQ(driven.answer().finish, Finish::kStop);
}

TEST("a stop string at the last of max_tokens is a stop") {
  Driven driven(with_stops({"!"}, 2));

  driven.prefill().say("a!");

  CHECK_EQ(driven.answer().finish, Finish::kStop);
}

TEST("text that was held back in vain is given at the end, whatever the end") {
  const std::vector<std::pair<Finish, std::function<void(Driven&)>>> ends = {
      {Finish::kLength, [](Driven& driven) { driven.say("O"); }},
      {Finish::kStop, [](Driven& driven) { driven.draw(kEnd); }},
      {Finish::kCancelled, [](Driven& driven) { driven.sequence->finish(Finish::kCancelled); }},
      {Finish::kError, [](Driven& driven) { driven.sequence->finish(Finish::kError, "why"); }},
  };
  for (const auto& [finish, end] : ends) {
    Driven driven(with_stops({"STOP"}, 4));
    driven.prefill().say("aST");
    CHECK_EQ(driven.answer().text, "a");

    end(driven);

    CHECK_EQ(driven.answer().text, finish == Finish::kLength ? "aSTO" : "aST");
    CHECK_EQ(driven.answer().finish, finish);
    CHECK_EQ(driven.answer().message, finish == Finish::kError ? "why" : "");
  }
}

TEST("a character across tokens comes with its last one, and its tokens are counted then") {
  Driven driven(make_task('p'));
  driven.prefill();

  driven.say("\xE2\x82");
  CHECK_EQ(driven.answer().n_chunks, 0);
  driven.say("\xAC");

  CHECK_EQ(driven.answer().text, "\xE2\x82\xAC");
  CHECK_EQ(driven.answer().n_tokens, 3);
}

TEST("logits that are not numbers end the sequence with an error that says so") {
  Driven driven(make_task('p'));
  driven.prefill().say("ab");
  std::vector<float> logits(1000, std::numeric_limits<float>::quiet_NaN());

  choose_next(*driven.sequence, logits);
  driven.sequence->take(Clock::now());

  CHECK_EQ(driven.state(), State::kDone);
  CHECK_EQ(driven.answer().finish, Finish::kError);
  CHECK(driven.answer().message.find("not numbers") != std::string::npos);
  CHECK_EQ(driven.answer().text, "ab");
}

TEST("penalties look back on the prompt too") {
  Sampling sampling = greedy();
  sampling.presence_penalty = 100;
  Driven driven(make_task('p', 3, -1, sampling));

  driven.prefill().draw('p');

  CHECK_EQ(driven.answer().text, std::string(1, '\0'));
}

TEST("times in the terminal chunk are those of the prompt and of the answer") {
  using std::chrono::milliseconds;
  const auto t0 = Clock::now();
  LoopStats stats;
  Signals signals;
  const ByteVocabulary vocabulary;
  const auto reader = make_reader();
  Sequence sequence({make_task('p', 1, 3), reader, t0}, vocabulary, 100, signals, stats);
  sequence.start(0, t0 + milliseconds(5));
  sequence.begin(0);
  sequence.computed(1);
  for (const int at : {25, 35, 65}) {
    std::vector<float> logits(static_cast<size_t>(vocabulary.size()), 0.0f);
    choose_next(sequence, logits);
    sequence.take(t0 + milliseconds(at));
    if (sequence.state() == State::kDecoding) sequence.computed(1);
  }

  std::vector<Chunk> taken;
  reader->take(taken);

  REQUIRE(taken.size() == 1);
  CHECK_EQ(taken[0].prompt_ms, 20.0);
  CHECK_EQ(taken[0].decode_ms, 40.0);
  CHECK_EQ(stats.queue_wait.buckets[3], uint64_t{1});  // at most 8 ms
  CHECK_EQ(stats.ttft.buckets[5], uint64_t{1});        // at most 32 ms
  CHECK_EQ(stats.itl.buckets[4], uint64_t{1});         // at most 16 ms
  CHECK_EQ(stats.itl.buckets[5], uint64_t{1});
  CHECK_EQ(stats.prompt_s, 0.02);
  CHECK_EQ(stats.decode_s, 0.04);
  CHECK_EQ(stats.later_tokens, uint64_t{2});
  CHECK_EQ(stats.longest_task, uint64_t{4});
}

TEST("progress is told before the prompt is read, and after each piece of it") {
  Task task = make_task('p', 10, 1);
  task.tells_progress = true;
  LoopStats stats;
  Signals signals;
  const ByteVocabulary vocabulary;
  const auto reader = make_reader();
  Sequence sequence({std::move(task), reader, Clock::now()}, vocabulary, 100, signals, stats);
  std::vector<int32_t> told;
  const auto look = [&] {
    std::vector<Chunk> taken;
    reader->take(taken);
    REQUIRE(taken.size() == 1);
    CHECK_EQ(taken[0].prompt_tokens, 10);
    CHECK_EQ(taken[0].cached_tokens, 2);
    CHECK_EQ(taken[0].n_tokens, 0);
    told.push_back(taken[0].read_tokens);
  };

  sequence.start(0, Clock::now());
  sequence.begin(2);
  look();
  sequence.computed(5);
  look();
  sequence.computed(3);
  look();

  CHECK(told == (std::vector<int32_t>{2, 7, 10}));
}

TEST("nobody is told of progress who does not ask") {
  Driven driven{make_task('p', 10, 1)};
  driven.prefill();

  CHECK_EQ(driven.answer().n_chunks, 0);
}

TEST("what a slot held already is not computed, and reported as cached") {
  Driven driven(make_task('p', 10, 2));
  driven.sequence->start(0, Clock::now());
  driven.sequence->begin(7);
  CHECK_EQ(driven.sequence->n_pending(), 3);
  driven.sequence->computed(3);
  driven.say("ab");

  CHECK_EQ(driven.answer().finish, Finish::kLength);
  CHECK_EQ(driven.answer().prompt_tokens, 10);
  CHECK_EQ(driven.answer().cached_tokens, 7);
  CHECK_EQ(driven.stats.cached_tokens, uint64_t{7});
  CHECK_EQ(driven.stats.prompt_tokens, uint64_t{3});
}

TEST("a preempted sequence computes prompt and answer again, and goes on where it was") {
  Driven driven(make_task('p', 4, 5));
  driven.prefill().say("abc");
  driven.sequence->preempt();

  CHECK_EQ(driven.sequence->slot(), -1);
  CHECK_EQ(driven.sequence->n_computed(), 0);
  CHECK_EQ(driven.sequence->n_pending(), 7);
  driven.prefill().say("de");

  CHECK_EQ(driven.answer().text, "abcde");
  CHECK_EQ(driven.answer().finish, Finish::kLength);
  CHECK_EQ(driven.answer().n_terminal, 1);
  CHECK_EQ(driven.answer().cached_tokens, 0);
  // Counted as they first were: neither its prompt nor its wait for a slot is seen twice.
  CHECK_EQ(driven.stats.prompt_tokens, uint64_t{4});
  CHECK_EQ(driven.stats.preempted, uint64_t{1});
  CHECK_EQ(std::accumulate(std::begin(driven.stats.queue_wait.buckets), std::end(driven.stats.queue_wait.buckets),
                           uint64_t{0}),
           uint64_t{1});
}

TEST("what was cached is reported as it first was, also after a preemption") {
  Driven driven(make_task('p', 10, 3));
  driven.sequence->start(0, Clock::now());
  driven.sequence->begin(7);
  driven.sequence->computed(3);
  driven.say("a");
  driven.sequence->preempt();
  driven.sequence->start(0, Clock::now());
  driven.sequence->begin(10);
  driven.sequence->computed(1);
  driven.say("bc");

  CHECK_EQ(driven.answer().text, "abc");
  CHECK_EQ(driven.answer().cached_tokens, 7);
  CHECK_EQ(driven.stats.cached_tokens, uint64_t{7});
  CHECK_EQ(driven.stats.prompt_tokens, uint64_t{3});
}

// Under the thread sanitizer this shows that choose() shares nothing: the decode loop lets sequences choose side by
// side, in OpenMP's threads, which the sanitizer does not see.
TEST("sequences that choose at the same time choose what they choose one after the other") {
  const auto choices = [](bool is_parallel) {
    std::vector<std::unique_ptr<Driven>> sequences;
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      Task task = make_task('p');
      task.sampling.temperature = 1;
      task.sampling.seed = seed;
      task.sampling.top_k = seed % 2 == 0 ? 0 : 20;
      task.sampling.repeat_penalty = 1.1f;
      task.sampling.typical_p = 0.9f;
      sequences.push_back(std::make_unique<Driven>(task));
      sequences.back()->prefill();
    }
    for (int step = 0; step < 50; ++step) {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const auto choose = [&sequence = *sequences[i]->sequence, i, step] {
          std::vector<float> logits(257);
          for (size_t token = 0; token < logits.size(); ++token) {
            logits[token] = static_cast<float>((token * 7919 + i * 31 + static_cast<size_t>(step)) % 97) / 20;
          }
          logits[256] = -100;
          choose_next(sequence, logits);
        };
        if (is_parallel) {
          threads.emplace_back(choose);
        } else {
          choose();
        }
      }
      for (std::thread& thread : threads) thread.join();
      for (const auto& driven : sequences) {
        driven->sequence->take(Clock::now());
        driven->sequence->computed(1);
      }
    }
    std::vector<std::vector<Token>> tokens;
    for (const auto& driven : sequences) tokens.push_back(driven->sequence->tokens());
    return tokens;
  };

  CHECK(choices(true) == choices(false));
}

Task with_grammar(const std::string& text, std::vector<std::string> stops = {}) {
  static const ByteVocabulary vocabulary;
  Task task = with_stops(std::move(stops));
  task.sampling.grammar = make_grammar(text, vocabulary);
  return task;
}

TEST("a grammar decides what is said, and its end is a stop with the end token") {
  Driven driven(with_grammar("root ::= \"yes\" | \"no\""));
  driven.prefill().say("nzz").draw('z');

  CHECK_EQ(driven.answer().text, "no");
  CHECK_EQ(driven.answer().finish, Finish::kStop);
  CHECK_EQ(driven.answer().n_tokens, 3);
}

TEST("a grammar at its end stops also where no end token may be drawn") {
  Task task = with_grammar("root ::= \"no\"");
  task.sampling.ignore_eos = true;
  Driven driven(std::move(task));
  driven.prefill().say("zzz");

  CHECK_EQ(driven.answer().text, "no");
  CHECK_EQ(driven.answer().finish, Finish::kStop);
  CHECK_EQ(driven.answer().n_tokens, 2);
}

TEST("a grammar that no token can follow ends its own sequence with an error that says so") {
  Task task = with_grammar("root ::= \"a\" \"b\"");
  task.sampling.biases = {{'b', -std::numeric_limits<float>::infinity()}};
  Driven driven(std::move(task));
  driven.prefill().say("ab");

  CHECK_EQ(driven.answer().text, "a");
  CHECK_EQ(driven.answer().finish, Finish::kError);
  CHECK(driven.answer().message.rfind("grammar_dead_end", 0) == 0);
}

TEST("a grammar that takes too long ends its own sequence with an error that says so") {
  Task task = with_grammar("root ::= " + repeated("[^a]? ", 8000));
  task.sampling.temperature = 1;
  task.sampling.top_k = 0;  // all tokens are looked at
  Driven driven(std::move(task));
  driven.prefill().say("b");

  CHECK_EQ(driven.answer().finish, Finish::kError);
  CHECK(driven.answer().message.rfind("grammar_too_slow", 0) == 0);
}

TEST("a stop string ends what a grammar would go on with") {
  Driven driven(with_grammar("root ::= [a-z]+", {"cd"}));
  driven.prefill().say("abcde");

  CHECK_EQ(driven.answer().text, "ab");
  CHECK_EQ(driven.answer().finish, Finish::kStop);
}

TEST("tokens are told of with the chunks that carry their text, the end token too") {
  Task task = with_stops({"stop"});
  task.sampling.n_probs = 1;
  Driven driven(task);
  driven.prefill().say("as\xC3\xA9");
  CHECK_EQ(driven.answer().tokens.entries().size(), size_t{8});
  driven.say("st");
  CHECK_EQ(driven.answer().tokens.entries().size(), size_t{8});
  driven.draw(kEnd);

  const Answer& answer = driven.answer();
  CHECK_EQ(answer.text, "as\xC3\xA9st");
  REQUIRE(answer.tokens.entries().size() == 14);
  CHECK_EQ(answer.tokens.entries()[12].token, kEnd);
  CHECK_EQ(answer.tokens.entries()[12].piece_size, 0);
}

TEST("without being asked for no chunk tells of tokens") {
  Driven driven(make_task('p'));
  driven.prefill().say("abc").draw(kEnd);

  CHECK(driven.answer().tokens.is_empty());
}

TEST("the terminal chunk names the stop string, and the slot it ran in last") {
  Driven driven(with_stops({"cd"}));
  driven.prefill().say("abcd");

  CHECK_EQ(driven.answer().stopping_word, "cd");
  CHECK_EQ(driven.answer().slot, 0);
  CHECK_EQ(driven.answer().code, "");
}

TEST("a preempted sequence that ends without a slot names the one it had, and one that had none names none") {
  Driven driven(make_task('p'));
  driven.prefill().say("a");
  driven.sequence->preempt();
  driven.sequence->finish(Finish::kCancelled);
  CHECK_EQ(driven.answer().slot, 0);

  Driven other(make_task('p'));
  other.sequence->finish(Finish::kCancelled);
  CHECK_EQ(other.answer().slot, -1);
}

TEST("errors that programs want to know have a code of their own") {
  const auto code_of = [](Task task, float others) {
    Driven driven(std::move(task));
    driven.prefill();
    std::vector<float> logits(257, others);
    choose_next(*driven.sequence, logits);
    driven.sequence->take(Clock::now());
    CHECK_EQ(driven.answer().finish, Finish::kError);
    return driven.answer().code;
  };

  CHECK_EQ(code_of(make_task('p'), -std::numeric_limits<float>::infinity()), "all_tokens_banned");
  CHECK_EQ(code_of(make_task('p'), std::numeric_limits<float>::quiet_NaN()), "");
  Task dead = with_grammar("root ::= \"a\"");
  dead.sampling.biases = {{'a', -std::numeric_limits<float>::infinity()}};
  CHECK_EQ(code_of(std::move(dead), 1), "grammar_dead_end");
  Task slow = with_grammar("root ::= " + repeated("[^a]? ", 8000));
  slow.sampling.temperature = 1;
  slow.sampling.top_k = 0;  // all tokens are looked at
  CHECK_EQ(code_of(std::move(slow), 1), "grammar_too_slow");
}

TEST("generating ends with its time, which begins with the first token") {
  Task task = make_task('p');
  task.max_ms = 100;
  Driven driven(task);
  driven.prefill();
  const auto begin = Clock::now() + std::chrono::hours(1);
  const auto draw_at = [&](int ms) {
    std::vector<float> logits(257, 0.0f);
    choose_next(*driven.sequence, logits);
    driven.sequence->take(begin + std::chrono::milliseconds(ms));
    if (driven.state() == State::kDecoding) driven.sequence->computed(1);
  };

  draw_at(0);
  draw_at(99);
  CHECK_EQ(driven.answer().n_terminal, 0);
  draw_at(100);
  CHECK_EQ(driven.answer().finish, Finish::kLength);
  CHECK_EQ(driven.answer().n_tokens, 3);
}

}  // namespace
}  // namespace corosrv
