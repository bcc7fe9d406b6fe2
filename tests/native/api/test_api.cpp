// Through corosrv.h alone, as the Python binding does.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "corosrv.h"
#include "foreign.h"

namespace {

using corosrv::Foreigner;

constexpr int kPatience = 20000;  // ms
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_readable(int fd, int timeout_ms) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, timeout_ms) == 1 && (polled.revents & POLLIN) != 0;
}

corosrv_options make_options(const corosrv_synthetic* synthetic) {
  corosrv_options options{};
  options.synthetic = synthetic;
  options.context = 1000;
  options.slots = 4;
  options.queue = 100;
  options.batch = 64;
  options.step_ms = 60;
  options.reader_bytes = 1 << 20;
  return options;
}

struct CloseEngine {
  void operator()(corosrv_engine* engine) const { corosrv_engine_close(engine); }
};
struct CloseReader {
  void operator()(corosrv_reader* reader) const { corosrv_reader_close(reader); }
};
using EnginePtr = std::unique_ptr<corosrv_engine, CloseEngine>;
using ReaderPtr = std::unique_ptr<corosrv_reader, CloseReader>;

EnginePtr open(corosrv_options options) {
  corosrv_engine* engine = nullptr;
  char message[200] = "";
  REQUIRE(corosrv_engine_open(&options, &engine, message, sizeof message) == COROSRV_OK);
  REQUIRE(is_readable(corosrv_engine_fd(engine), kPatience));
  return EnginePtr(engine);
}

// Emits as fast as the loop goes; `length` 0 never ends by itself.
EnginePtr open_synthetic(int32_t length = 0, int32_t slots = 4) {
  const corosrv_synthetic synthetic{0, 0, length};
  corosrv_options options = make_options(&synthetic);
  options.slots = slots;
  return open(options);
}

// A task with the memory that it points to.
struct TaskFor {
  std::vector<int32_t> tokens;
  std::vector<corosrv_bias> biases;
  std::vector<corosrv_text> stops;
  std::vector<corosrv_text> breakers;
  std::vector<corosrv_text> triggers;
  std::vector<int32_t> samplers;
  corosrv_task task{};

  explicit TaskFor(const std::string& prompt, int32_t max_tokens = -1) {
    for (const char byte : prompt) tokens.push_back(static_cast<uint8_t>(byte));
    task.max_tokens = max_tokens;
    task.sampling.top_p = task.sampling.typical_p = task.sampling.repeat_penalty = 1;
    task.sampling.n_probs = -1;
    task.weight = 1;
  }

  const corosrv_task& get() {
    task.tokens = tokens.data();
    task.n_tokens = tokens.size();
    task.sampling.biases = biases.data();
    task.sampling.n_biases = biases.size();
    task.sampling.dry_breakers = breakers.data();
    task.sampling.n_dry_breakers = breakers.size();
    task.sampling.grammar_triggers = triggers.data();
    task.sampling.n_grammar_triggers = triggers.size();
    task.sampling.samplers = samplers.data();
    task.sampling.n_samplers = samplers.size();
    task.stops = stops.data();
    task.n_stops = stops.size();
    return task;
  }
};

ReaderPtr submit(const EnginePtr& engine, TaskFor task) {
  corosrv_reader* reader = nullptr;
  char message[200] = "";
  const int code = corosrv_submit(engine.get(), &task.get(), 1, &reader, message, sizeof message);
  if (code != COROSRV_OK) check::fail(__FILE__, __LINE__, message);
  REQUIRE(code == COROSRV_OK);
  return ReaderPtr(reader);
}

struct Answer {
  std::string text;
  std::string message;
  int32_t n_tokens = 0;
  int n_terminal = 0;
  int finish = COROSRV_UNFINISHED;
};

void take(const ReaderPtr& reader, Answer& answer) {
  corosrv_batch batch{};
  CHECK_EQ(corosrv_reader_take(reader.get(), 1, &batch), COROSRV_OK);
  for (size_t i = 0; i < batch.n_chunks; ++i) {
    const corosrv_chunk& chunk = batch.chunks[i];
    CHECK_EQ(answer.n_terminal, 0);
    (chunk.finish == COROSRV_ERROR ? answer.message : answer.text).append(chunk.text, chunk.text_size);
    answer.n_tokens += chunk.n_tokens;
    if (chunk.finish != COROSRV_UNFINISHED) ++answer.n_terminal;
    answer.finish = chunk.finish;
  }
}

Answer read_all(const ReaderPtr& reader) {
  Answer answer;
  while (answer.n_terminal == 0) {
    REQUIRE(is_readable(corosrv_reader_fd(reader.get()), kPatience));
    take(reader, answer);
  }
  return answer;
}

corosrv_stats stats_of(const EnginePtr& engine) {
  corosrv_stats stats{};
  CHECK_EQ(corosrv_engine_stats(engine.get(), &stats), COROSRV_OK);
  return stats;
}

TEST("each option out of range is refused with a message that names it") {
  const corosrv_synthetic synthetic{0, 0, 0};
  const std::vector<std::pair<std::string, std::function<void(corosrv_options&)>>> table = {
      {"slots must be at least 1", [](corosrv_options& options) { options.slots = 0; }},
      {"slots must be at most 256",
       [](corosrv_options& options) {
         options.synthetic = nullptr;
         options.slots = options.batch = 257;
       }},
      {"batch must be at least 1", [](corosrv_options& options) { options.batch = 0; }},
      {"batch must be at least slots",
       [](corosrv_options& options) {
         options.synthetic = nullptr;
         options.batch = options.slots - 1;
       }},
      {"queue", [](corosrv_options& options) { options.queue = -1; }},
      {"tasks_of_owner", [](corosrv_options& options) { options.tasks_of_owner = -1; }},
      {"context must not be negative", [](corosrv_options& options) { options.context = -1; }},
      {"needs a context", [](corosrv_options& options) { options.context = 0; }},
      {"kv_unified and deterministic",
       [](corosrv_options& options) { options.kv_unified = options.deterministic = 1; }},
      {"step_ms", [](corosrv_options& options) { options.step_ms = 0; }},
      {"step_ms", [](corosrv_options& options) { options.step_ms = std::nan(""); }},
      {"kernels", [](corosrv_options& options) { options.kernels = 4; }},
      {"kernels", [](corosrv_options& options) { options.kernels = -1; }},
      {"reader_bytes", [](corosrv_options& options) { options.reader_bytes = 0; }},
      {"grammar bytes", [](corosrv_options& options) { options.grammars.bytes = -1; }},
      {"grammar depth", [](corosrv_options& options) { options.grammars.depth = 1001; }},
      {"grammar rules", [](corosrv_options& options) { options.grammars.rules = -1; }},
      {"grammar repetitions", [](corosrv_options& options) { options.grammars.repetitions = -1; }},
      {"grammar elements", [](corosrv_options& options) { options.grammars.elements = -1; }},
      {"grammar token_ms", [](corosrv_options& options) { options.grammars.token_ms = std::nan(""); }},
  };

  for (const auto& [words, spoil] : table) {
    corosrv_options options = make_options(&synthetic);
    spoil(options);
    corosrv_engine* engine = nullptr;
    char message[200] = "";

    CHECK_EQ(corosrv_engine_open(&options, &engine, message, sizeof message), COROSRV_INVALID);
    CHECK(engine == nullptr);
    if (std::string(message).find(words) == std::string::npos) check::fail(__FILE__, __LINE__, words + ": " + message);
  }
}

TEST("each task out of range is refused with a message that names what is wrong") {
  const std::vector<std::pair<std::string, std::function<void(TaskFor&)>>> table = {
      {"no tokens", [](TaskFor& task) { task.tokens.clear(); }},
      {"unknown token", [](TaskFor& task) { task.tokens[1] = -1; }},
      {"unknown token", [](TaskFor& task) { task.tokens[1] = 100000; }},
      {"max_tokens", [](TaskFor& task) { task.task.max_tokens = -2; }},
      {"stop string", [](TaskFor& task) { task.stops = {{"x", 1}, {"", 0}}; }},
      {"temperature", [](TaskFor& task) { task.task.sampling.temperature = -0.1f; }},
      {"temperature", [](TaskFor& task) { task.task.sampling.temperature = kNan; }},
      {"temperature", [](TaskFor& task) { task.task.sampling.temperature = kInfinity; }},
      {"top_k", [](TaskFor& task) { task.task.sampling.top_k = -1; }},
      {"top_p", [](TaskFor& task) { task.task.sampling.top_p = 1.1f; }},
      {"top_p", [](TaskFor& task) { task.task.sampling.top_p = kNan; }},
      {"min_p", [](TaskFor& task) { task.task.sampling.min_p = -0.1f; }},
      {"typical_p", [](TaskFor& task) { task.task.sampling.typical_p = 2; }},
      {"repeat_penalty", [](TaskFor& task) { task.task.sampling.repeat_penalty = 0; }},
      {"repeat_penalty", [](TaskFor& task) { task.task.sampling.repeat_penalty = kInfinity; }},
      {"presence_penalty", [](TaskFor& task) { task.task.sampling.presence_penalty = kNan; }},
      {"frequency_penalty", [](TaskFor& task) { task.task.sampling.frequency_penalty = kInfinity; }},
      {"repeat_last_n", [](TaskFor& task) { task.task.sampling.repeat_last_n = -2; }},
      {"logit_bias", [](TaskFor& task) { task.biases = {{-1, 0.0f}}; }},
      {"top_n_sigma", [](TaskFor& task) { task.task.sampling.top_n_sigma = kNan; }},
      {"xtc_probability", [](TaskFor& task) { task.task.sampling.xtc_probability = 1.1f; }},
      {"xtc_threshold", [](TaskFor& task) { task.task.sampling.xtc_threshold = -0.1f; }},
      {"dynatemp_range", [](TaskFor& task) { task.task.sampling.dynatemp_range = -1; }},
      {"dynatemp_exponent", [](TaskFor& task) { task.task.sampling.dynatemp_exponent = kInfinity; }},
      {"dry_multiplier", [](TaskFor& task) { task.task.sampling.dry_multiplier = -1; }},
      {"dry_base", [](TaskFor& task) { task.task.sampling.dry_base = kNan; }},
      {"dry_allowed_length", [](TaskFor& task) { task.task.sampling.dry_allowed_length = -1; }},
      {"dry_penalty_last_n", [](TaskFor& task) { task.task.sampling.dry_penalty_last_n = -2; }},
      {"mirostat", [](TaskFor& task) { task.task.sampling.mirostat = 3; }},
      {"mirostat_tau", [](TaskFor& task) { task.task.sampling.mirostat_tau = -1; }},
      {"mirostat_eta", [](TaskFor& task) { task.task.sampling.mirostat_eta = kNan; }},
      {"adaptive_target", [](TaskFor& task) { task.task.sampling.adaptive_target = 2; }},
      {"adaptive_decay", [](TaskFor& task) { task.task.sampling.adaptive_decay = 1.5f; }},
      {"min_keep", [](TaskFor& task) { task.task.sampling.min_keep = -1; }},
      {"n_probs", [](TaskFor& task) { task.task.sampling.n_probs = -2; }},
      {"max_ms", [](TaskFor& task) { task.task.max_ms = -1; }},
      {"max_ms", [](TaskFor& task) { task.task.max_ms = std::nan(""); }},
      {"priority", [](TaskFor& task) { task.task.priority = -1; }},
      {"priority", [](TaskFor& task) { task.task.priority = 10; }},
      {"tier", [](TaskFor& task) { task.task.tier = -1; }},
      {"tier", [](TaskFor& task) { task.task.tier = 10; }},
      {"weight", [](TaskFor& task) { task.task.weight = 0; }},
      {"weight", [](TaskFor& task) { task.task.weight = -1; }},
      {"weight", [](TaskFor& task) { task.task.weight = INFINITY; }},
      {"weight", [](TaskFor& task) { task.task.weight = NAN; }},
      {"deadline", [](TaskFor& task) { task.task.deadline = -1; }},
      {"deadline", [](TaskFor& task) { task.task.deadline = std::nan(""); }},
      {"unknown", [](TaskFor& task) { task.samplers = {3, 10}; }},
      {"unknown", [](TaskFor& task) { task.samplers = {-1}; }},
      {"twice", [](TaskFor& task) { task.samplers = {3, 4, 3}; }},
      {"dry_sequence_breakers", [](TaskFor& task) { task.breakers = {{"", 0}}; }},
      {"dry_sequence_breakers", [](TaskFor& task) { task.breakers.assign(65, {"x", 1}); }},
      {"trigger", [](TaskFor& task) { task.triggers = {{"", 0}}; }},
      {"need a grammar", [](TaskFor& task) { task.triggers = {{"x", 1}}; }},
      {"logit_bias", [](TaskFor& task) { task.biases = {{100000, 0.0f}}; }},
      {"logit_bias", [](TaskFor& task) { task.biases = {{1, kNan}}; }},
  };
  const EnginePtr engine = open_synthetic();

  for (const auto& [words, spoil] : table) {
    TaskFor good("abc");
    TaskFor bad("abc");
    spoil(bad);
    const corosrv_task tasks[] = {good.get(), bad.get()};
    corosrv_reader* reader = nullptr;
    char message[200] = "";

    CHECK_EQ(corosrv_submit(engine.get(), tasks, 2, &reader, message, sizeof message), COROSRV_INVALID);
    CHECK(reader == nullptr);
    if (std::string(message).find(words) == std::string::npos) check::fail(__FILE__, __LINE__, words + ": " + message);
  }
  corosrv_reader* reader = nullptr;
  CHECK_EQ(corosrv_submit(engine.get(), nullptr, 0, &reader, nullptr, 0), COROSRV_INVALID);
  CHECK_EQ(stats_of(engine).readers, 0);
}

TEST("a prompt too long and a queue too full are refused by their codes") {
  const EnginePtr engine = open_synthetic();
  TaskFor longest(std::string(1000, 'x'));
  corosrv_reader* reader = nullptr;
  char message[200] = "";
  CHECK_EQ(corosrv_submit(engine.get(), &longest.get(), 1, &reader, message, sizeof message), COROSRV_TOO_LONG);

  TaskFor task("x");
  const std::vector<corosrv_task> tasks(105, task.get());  // 4 slots, and 100 may wait
  CHECK_EQ(corosrv_submit(engine.get(), tasks.data(), tasks.size(), &reader, message, sizeof message),
           COROSRV_QUEUE_FULL);
  CHECK_EQ(stats_of(engine).tasks_refused, uint64_t{105});
}

TEST("a message is cut to the room there is, and may be left out") {
  const EnginePtr engine = open_synthetic();
  corosrv_reader* reader = nullptr;
  char message[8];
  std::memset(message, '?', sizeof message);

  CHECK_EQ(corosrv_submit(engine.get(), nullptr, 0, &reader, message, 6), COROSRV_INVALID);
  CHECK_EQ(std::string(message), "a job");
  CHECK_EQ(message[6], '?');
  CHECK_EQ(corosrv_submit(engine.get(), nullptr, 0, &reader, message, 0), COROSRV_INVALID);
  CHECK_EQ(corosrv_submit(engine.get(), nullptr, 0, &reader, nullptr, 6), COROSRV_INVALID);
}

TEST("a synthetic model says what it is, and answers equal prompts equally") {
  const EnginePtr engine = open_synthetic(20);
  corosrv_model_info info{};

  CHECK_EQ(corosrv_engine_info(engine.get(), &info), COROSRV_OK);
  CHECK_EQ(info.context, 1000);
  CHECK_EQ(std::string(info.description), "synthetic");
  const Answer one = read_all(submit(engine, TaskFor("hello")));
  const Answer two = read_all(submit(engine, TaskFor("hello")));

  CHECK_EQ(one.finish, COROSRV_STOP);
  CHECK_EQ(one.n_tokens, 21);
  CHECK(!one.text.empty());
  CHECK_EQ(one.text, two.text);
}

TEST("a synthetic answer is the same alone and among others (I9)") {
  const auto prompt = [](int i) { return "prompt " + std::string(static_cast<size_t>(1 + i * 17 % 90), 'x'); };
  std::vector<std::string> alone;
  for (int i = 0; i < 12; ++i) {
    const EnginePtr engine = open_synthetic(25);
    alone.push_back(read_all(submit(engine, TaskFor(prompt(i)))).text);
  }
  const EnginePtr engine = open_synthetic(25);

  std::vector<ReaderPtr> readers;
  for (int i = 0; i < 12; ++i) readers.push_back(submit(engine, TaskFor(prompt(i))));

  for (size_t i = 0; i < 12; ++i) CHECK_EQ(read_all(readers[i]).text, alone[i]);
}

TEST("stop strings, biases and max_tokens reach the model") {
  const EnginePtr engine = open_synthetic(40);
  const std::string text = read_all(submit(engine, TaskFor("hi"))).text;
  TaskFor stopped("hi");
  const std::string stop = text.substr(text.size() / 2, 3);
  stopped.stops = {{stop.data(), stop.size()}};
  TaskFor biased("hi", 5);
  biased.biases = {{'Z', 100.0f}};
  TaskFor banned("hi");
  for (int32_t token = 0; token < 273; ++token) banned.biases.push_back({token, -kInfinity});

  CHECK_EQ(read_all(submit(engine, stopped)).text, text.substr(0, text.find(stop)));
  const Answer five = read_all(submit(engine, biased));
  CHECK_EQ(five.text, "ZZZZZ");
  CHECK_EQ(five.finish, COROSRV_LENGTH);
  const Answer none = read_all(submit(engine, banned));
  CHECK_EQ(none.finish, COROSRV_ERROR);
  CHECK(none.message.find("banned") != std::string::npos);
}

TEST("a grammar reaches the model, and one that cannot be used is refused by its code and its place") {
  const EnginePtr engine = open_synthetic();
  const std::string good = "root ::= \"yes\" \"!\"{2}";
  const std::string bad = "root ::= \"yes";
  TaskFor task("prompt");
  corosrv_reader* reader = nullptr;
  char message[200] = "";

  task.task.sampling.grammar = {good.data(), good.size()};
  const Answer answer = read_all(submit(engine, task));
  task.task.sampling.grammar = {bad.data(), bad.size()};
  const int code = corosrv_submit(engine.get(), &task.get(), 1, &reader, message, sizeof message);

  CHECK_EQ(answer.text, "yes!!");
  CHECK_EQ(answer.finish, COROSRV_STOP);
  CHECK_EQ(code, COROSRV_INVALID_GRAMMAR);
  CHECK_EQ(std::string(message), "line 1, column 10: this '\"' is never closed");
}

struct CloseVocabulary {
  void operator()(corosrv_vocabulary* vocabulary) const { corosrv_vocabulary_close(vocabulary); }
};
using VocabularyPtr = std::unique_ptr<corosrv_vocabulary, CloseVocabulary>;

VocabularyPtr open_vocabulary() {
  const corosrv_synthetic synthetic{};
  corosrv_options options{};
  options.synthetic = &synthetic;
  corosrv_vocabulary* vocabulary = nullptr;
  REQUIRE(corosrv_vocabulary_open(&options, &vocabulary, nullptr, 0) == COROSRV_OK);
  return VocabularyPtr(vocabulary);
}

corosrv_vocabulary* vocabulary_of(const EnginePtr& engine) {
  corosrv_vocabulary* vocabulary = nullptr;
  REQUIRE(corosrv_engine_vocabulary(engine.get(), &vocabulary) == COROSRV_OK);
  return vocabulary;
}

void check_tokens(corosrv_vocabulary* vocabulary) {
  constexpr int32_t kEos = 272;
  int32_t tokens[3] = {-1, -1, -1};
  int32_t n_vocab = 0;
  size_t n_tokens = 0;
  CHECK_EQ(corosrv_vocabulary_size(vocabulary, &n_vocab), COROSRV_OK);
  CHECK_EQ(n_vocab, 273);

  CHECK_EQ(corosrv_tokenize(vocabulary, "hey", 3, 1, 1, tokens, 2, &n_tokens), COROSRV_OK);
  CHECK_EQ(n_tokens, size_t{3});
  CHECK(tokens[0] == 'h' && tokens[1] == 'e' && tokens[2] == -1);
  CHECK_EQ(corosrv_tokenize(vocabulary, "", 0, 1, 1, nullptr, 0, &n_tokens), COROSRV_OK);
  CHECK_EQ(n_tokens, size_t{0});

  corosrv_text text{};
  CHECK_EQ(corosrv_token_text(vocabulary, 'h', 0, &text), COROSRV_OK);
  CHECK_EQ(std::string(text.data, text.size), "h");
  CHECK_EQ(corosrv_token_text(vocabulary, kEos, 0, &text), COROSRV_OK);
  CHECK_EQ(text.size, size_t{0});
  CHECK_EQ(corosrv_token_text(vocabulary, kEos, 1, &text), COROSRV_OK);
  CHECK_EQ(std::string(text.data, text.size), "<|end|>");
  CHECK_EQ(corosrv_token_text(vocabulary, n_vocab, 0, &text), COROSRV_INVALID);
  CHECK_EQ(corosrv_token_text(vocabulary, -1, 0, &text), COROSRV_INVALID);
  CHECK_EQ(corosrv_token_is_control(vocabulary, kEos), 1);
  CHECK_EQ(corosrv_token_is_control(vocabulary, 'h'), 0);
  CHECK_EQ(corosrv_token_is_control(vocabulary, -1), 0);
  CHECK_EQ(corosrv_token_is_end(vocabulary, kEos), 1);
  CHECK_EQ(corosrv_token_is_end(vocabulary, 'h'), 0);
  CHECK_EQ(corosrv_token_is_end(vocabulary, n_vocab), 0);
}

TEST("text becomes tokens, and tokens become text again, with an engine and without one") {
  check_tokens(vocabulary_of(open_synthetic()));
  check_tokens(open_vocabulary().get());
}

TEST("tokens are shown before the first task alone, and only those that there are") {
  const EnginePtr engine = open_synthetic();
  const VocabularyPtr vocabulary = open_vocabulary();
  const int32_t known = 'h', unknown = 273;
  char message[200] = "";

  for (corosrv_vocabulary* one : {vocabulary_of(engine), vocabulary.get()}) {
    CHECK_EQ(corosrv_show_tokens(one, &known, 1, message, sizeof message), COROSRV_OK);
    CHECK_EQ(corosrv_show_tokens(one, &unknown, 1, message, sizeof message), COROSRV_INVALID);
    CHECK(std::strstr(message, "none of the model's") != nullptr);
  }
  read_all(submit(engine, TaskFor("x", 1)));
  CHECK_EQ(corosrv_show_tokens(vocabulary_of(engine), &known, 1, message, sizeof message), COROSRV_INVALID);
  CHECK(std::strstr(message, "first task") != nullptr);
}

TEST("a vocabulary that cannot be loaded says why") {
  corosrv_options options{};
  options.model = "/no/such/model.gguf";
  corosrv_vocabulary* vocabulary = nullptr;
  char message[200] = "";

  CHECK_EQ(corosrv_vocabulary_open(&options, &vocabulary, message, sizeof message), COROSRV_INVALID);

  CHECK(vocabulary == nullptr);
  CHECK(std::strlen(message) > 0);
  corosrv_vocabulary_close(vocabulary);
}

TEST("a model file without libllama is a failed engine, which answers that it is not ready") {
  corosrv_options options = make_options(nullptr);
  options.model = "/no/such/model.gguf";
  const EnginePtr engine = open(options);
  int state = -1;
  char message[200] = "";

  CHECK_EQ(corosrv_engine_state(engine.get(), &state, message, sizeof message), COROSRV_OK);
  CHECK_EQ(state, COROSRV_FAILED);
  CHECK(std::string(message).find("libllama") != std::string::npos);
  corosrv_model_info info{};
  CHECK_EQ(corosrv_engine_info(engine.get(), &info), COROSRV_NOT_READY);
  corosrv_reader* reader = nullptr;
  TaskFor task("x");
  CHECK_EQ(corosrv_submit(engine.get(), &task.get(), 1, &reader, message, sizeof message), COROSRV_NOT_READY);
  CHECK_EQ(stats_of(engine).slots, 4);
  CHECK_EQ(std::string(corosrv_llama_fingerprint()), "");
}

TEST("closing nothing is harmless") {
  corosrv_engine_close(nullptr);
  corosrv_reader_close(nullptr);
}

TEST("a reader may be closed before its engine or after, read or unread") {
  EnginePtr engine = open_synthetic();
  ReaderPtr before = submit(engine, TaskFor("before"));
  ReaderPtr after = submit(engine, TaskFor("after"));
  ReaderPtr finished = submit(engine, TaskFor("finished", 2));
  CHECK_EQ(read_all(finished).finish, COROSRV_LENGTH);

  before.reset();
  engine.reset();

  const Answer answer = read_all(after);
  CHECK_EQ(answer.n_terminal, 1);
  CHECK_EQ(corosrv_reader_cancel(after.get()), COROSRV_OK);
}

TEST("cancelling ends with a cancelled chunk, and draining with the words given") {
  const EnginePtr engine = open_synthetic();
  const ReaderPtr cancelled = submit(engine, TaskFor("x", -1));
  const ReaderPtr drained = submit(engine, TaskFor("y", -1));

  CHECK_EQ(corosrv_reader_cancel(cancelled.get()), COROSRV_OK);
  const int cancelled_finish = read_all(cancelled).finish;
  CHECK_EQ(corosrv_engine_drain(engine.get(), "going down"), COROSRV_OK);
  const Answer answer = read_all(drained);

  // Either may have been as fast as to fill its context first.
  CHECK(cancelled_finish == COROSRV_CANCELLED || cancelled_finish == COROSRV_LENGTH);
  CHECK(answer.finish == COROSRV_LENGTH || answer.message == "going down");
  corosrv_reader* reader = nullptr;
  TaskFor task("z");
  char message[200] = "";
  CHECK_EQ(corosrv_submit(engine.get(), &task.get(), 1, &reader, message, sizeof message), COROSRV_CLOSED);
  CHECK_EQ(std::string(message), "going down");
}

TEST("a drain without words is refused, not thrown") {
  const EnginePtr engine = open_synthetic();

  CHECK_EQ(corosrv_engine_drain(engine.get(), nullptr), COROSRV_INVALID);
}

TEST("a look that was not woken takes what is there and finds nothing where nothing is") {
  const EnginePtr engine = open_synthetic();
  const ReaderPtr reader = submit(engine, TaskFor("x", 3));
  REQUIRE(is_readable(corosrv_reader_fd(reader.get()), kPatience));
  Answer answer;
  while (answer.n_terminal == 0) take(reader, answer);

  corosrv_batch batch{};
  CHECK_EQ(corosrv_reader_take(reader.get(), 1, &batch), COROSRV_OK);
  CHECK_EQ(batch.n_chunks, size_t{0});
}

TEST("a take clears the descriptor only where it is asked to") {
  const EnginePtr engine = open_synthetic();
  const ReaderPtr reader = submit(engine, TaskFor("x", 3));
  REQUIRE(is_readable(corosrv_reader_fd(reader.get()), kPatience));
  Answer answer;
  while (answer.n_terminal == 0) {
    corosrv_batch batch{};
    REQUIRE(corosrv_reader_take(reader.get(), 0, &batch) == COROSRV_OK);
    for (size_t i = 0; i < batch.n_chunks; ++i) answer.n_terminal += batch.chunks[i].finish != COROSRV_UNFINISHED;
  }
  // The last chunk may be seen before its signal, which comes before the step is in the counters.
  corosrv_stats stats{};
  for (int patience = kPatience; stats.tasks_length == 0 && patience > 0; --patience) {
    REQUIRE(corosrv_engine_stats(engine.get(), &stats) == COROSRV_OK);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(is_readable(corosrv_reader_fd(reader.get()), 0));

  corosrv_batch batch{};
  CHECK_EQ(corosrv_reader_take(reader.get(), 1, &batch), COROSRV_OK);
  CHECK(!is_readable(corosrv_reader_fd(reader.get()), 0));
}

// I2. Readers come and go in thousands, each closed while the decode thread is about to end it, and the numbers of
// their descriptors go to somebody else at once.
TEST("a closed reader's descriptor is never written to again (I2)") {
  const EnginePtr engine = open_synthetic();
  Foreigner one;
  Foreigner two;
  std::vector<std::thread> clients;
  for (int thread = 0; thread < 2; ++thread) {
    clients.emplace_back([&engine, thread] {
      for (int i = 0; i < 1500; ++i) {
        TaskFor task("x", 1 + i % 4);
        corosrv_reader* reader = nullptr;
        if (corosrv_submit(engine.get(), &task.get(), 1, &reader, nullptr, 0) != COROSRV_OK) continue;
        corosrv_batch batch{};
        if (i % 2 == thread) is_readable(corosrv_reader_fd(reader), kPatience);
        if (i % 2 == thread) (void)corosrv_reader_take(reader, 1, &batch);
        corosrv_reader_close(reader);
      }
    });
  }

  for (std::thread& client : clients) client.join();
}

// I8. The child exits with the number of the first call that answered wrongly, 0 when there was none.
int answers_in_child(const EnginePtr& engine, const ReaderPtr& reader, corosrv_vocabulary* lent,
                     corosrv_vocabulary* own) {
  int state = 0;
  int32_t n_vocab = 0;
  corosrv_vocabulary* late = nullptr;
  corosrv_model_info info{};
  corosrv_stats stats{};
  size_t n_tokens = 0;
  corosrv_text text{};
  corosrv_reader* submitted = nullptr;
  TaskFor task("x");
  corosrv_batch batch{};
  char message[300] = "";
  if (corosrv_engine_state(engine.get(), &state, message, sizeof message) != COROSRV_FORKED) return 1;
  if (std::strstr(message, "--preload") == nullptr) return 2;
  if (corosrv_engine_info(engine.get(), &info) != COROSRV_FORKED) return 3;
  if (corosrv_engine_stats(engine.get(), &stats) != COROSRV_FORKED) return 4;
  for (corosrv_vocabulary* vocabulary : {lent, own}) {
    if (corosrv_tokenize(vocabulary, "x", 1, 0, 0, nullptr, 0, &n_tokens) != COROSRV_FORKED) return 5;
    if (corosrv_token_text(vocabulary, 0, 0, &text) != COROSRV_FORKED) return 6;
    if (corosrv_token_is_control(vocabulary, 272) != 0 || corosrv_token_is_end(vocabulary, 272) != 0) return 7;
    if (corosrv_vocabulary_size(vocabulary, &n_vocab) != COROSRV_FORKED) return 15;
    if (corosrv_show_tokens(vocabulary, nullptr, 0, message, sizeof message) != COROSRV_FORKED) return 16;
  }
  if (corosrv_engine_vocabulary(engine.get(), &late) != COROSRV_FORKED) return 17;
  corosrv_vocabulary_close(own);
  std::memset(message, 0, sizeof message);
  if (corosrv_submit(engine.get(), &task.get(), 1, &submitted, message, sizeof message) != COROSRV_FORKED) return 8;
  if (std::strstr(message, "--preload") == nullptr) return 9;
  if (corosrv_engine_drain(engine.get(), "x") != COROSRV_FORKED) return 10;
  if (corosrv_reader_take(reader.get(), 1, &batch) != COROSRV_FORKED) return 11;
  if (corosrv_reader_cancel(reader.get()) != COROSRV_FORKED) return 12;
  const int fd = corosrv_reader_fd(reader.get());
  const int engine_fd = corosrv_engine_fd(engine.get());
  corosrv_reader_close(reader.get());
  if (::fcntl(fd, F_GETFD) != -1) return 13;
  corosrv_engine_close(engine.get());
  if (::fcntl(engine_fd, F_GETFD) != -1) return 14;
  return 0;
}

TEST("after a fork every call in the child is refused, and the parent goes on (I8)") {
  const corosrv_synthetic synthetic{100, 0, 0};
  const EnginePtr engine = open(make_options(&synthetic));
  const ReaderPtr reader = submit(engine, TaskFor("parent", 30));
  const ReaderPtr cancelled = submit(engine, TaskFor("never read", 30));

  const VocabularyPtr vocabulary = open_vocabulary();
  corosrv_vocabulary* const lent = vocabulary_of(engine);

  const pid_t child = ::fork();
  if (child == 0) ::_exit(answers_in_child(engine, reader, lent, vocabulary.get()));
  int status = 0;
  REQUIRE(child > 0 && ::waitpid(child, &status, 0) == child);

  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
  const Answer answer = read_all(reader);
  CHECK_EQ(answer.finish, COROSRV_LENGTH);
  CHECK_EQ(answer.n_tokens, 30);
  CHECK_EQ(read_all(submit(engine, TaskFor("after", 2))).n_tokens, 2);
}

TEST("a child may open an engine of its own (I8)") {
#if defined(__SANITIZE_THREAD__)
  return;  // the sanitizer lets no child of a threaded process start threads
#endif
  const EnginePtr engine = open_synthetic();
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    {
      const EnginePtr own = open_synthetic(3);
      code = read_all(submit(own, TaskFor("x"))).finish == COROSRV_STOP ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(child > 0 && ::waitpid(child, &status, 0) == child);

  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST("a slot request is checked, waits for nothing that is not there, and is answered") {
  const EnginePtr engine = open_synthetic();
  const int32_t tokens[] = {1, 2};
  const int32_t unknown[] = {1, 999999};
  const float scales[] = {1};
  const uint8_t state[] = {0};
  const corosrv_slot_content empty{};
  const corosrv_slot_content foreign{unknown, 2, nullptr, 0, state, 1};
  const corosrv_slot_content adapted{tokens, 2, scales, 1, state, 1};
  const corosrv_slot_content stateless{tokens, 2, nullptr, 0, state, 0};
  corosrv_slot_request* request = nullptr;
  char message[200] = "";
  const auto ask = [&](int action, int32_t slot, const corosrv_slot_content* content) {
    return corosrv_engine_request_slot(engine.get(), action, slot, 0, content, &request, message, sizeof message);
  };

  for (const corosrv_slot_content* wrong : {&empty, &foreign, &adapted, &stateless}) {
    CHECK_EQ(ask(COROSRV_SLOT_RESTORE, 0, wrong), COROSRV_INVALID);
  }
  CHECK_EQ(ask(COROSRV_SLOT_RESTORE, 0, nullptr), COROSRV_INVALID);
  CHECK_EQ(ask(3, 0, nullptr), COROSRV_INVALID);
  CHECK_EQ(ask(COROSRV_SLOT_SAVE, -1, nullptr), COROSRV_INVALID);
  CHECK_EQ(ask(COROSRV_SLOT_SAVE, 4, nullptr), COROSRV_INVALID);
  const std::vector<int32_t> long_tokens(1001, 1);
  const corosrv_slot_content too_long{long_tokens.data(), long_tokens.size(), nullptr, 0, state, 1};
  CHECK_EQ(ask(COROSRV_SLOT_RESTORE, 0, &too_long), COROSRV_TOO_LONG);
  CHECK(request == nullptr);

  CHECK_EQ(ask(COROSRV_SLOT_SAVE, 3, nullptr), COROSRV_OK);
  REQUIRE(request != nullptr && is_readable(corosrv_slot_request_fd(request), kPatience));
  corosrv_slot_content content{};
  CHECK_EQ(corosrv_slot_request_result(request, &content, message, sizeof message), COROSRV_UNSUPPORTED);
  CHECK_EQ(content.n_tokens, size_t{0});
  corosrv_slot_request_abandon(request);
  corosrv_slot_request_close(request);
  corosrv_slot_request_close(nullptr);
}

TEST("stats add up over many tasks") {
  const EnginePtr engine = open_synthetic(10);
  std::vector<ReaderPtr> readers;
  for (int i = 0; i < 30; ++i) readers.push_back(submit(engine, TaskFor("abcd", i % 2 == 0 ? 4 : -1)));
  for (const ReaderPtr& reader : readers) read_all(reader);
  readers.clear();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatience);
  // The loop lets go of a reader after its last signal.
  while (stats_of(engine).readers > 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();

  const corosrv_stats stats = stats_of(engine);

  CHECK_EQ(stats.tasks_length, uint64_t{15});
  CHECK_EQ(stats.tasks_stop, uint64_t{15});
  CHECK_EQ(stats.prompt_tokens, uint64_t{120});
  CHECK_EQ(stats.generated_tokens, uint64_t{15 * 4 + 15 * 11});
  CHECK_EQ(stats.waiting, 0);
  CHECK_EQ(stats.running, 0);
  CHECK_EQ(stats.readers, 0);
  uint64_t n_first = 0;
  uint64_t n_next = 0;
  for (const uint64_t count : stats.ttft.buckets) n_first += count;
  for (const uint64_t count : stats.itl.buckets) n_next += count;
  CHECK_EQ(n_first, uint64_t{30});
  CHECK_EQ(n_next, stats.generated_tokens - 30);
}

}  // namespace
