// Stand-ins with behaviour: a vocabulary of bytes, a scripted model, a client that reads as a greenlet would.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "check.h"
#include "decode_loop.h"
#include "inbox.h"
#include "reader.h"

namespace corosrv {

constexpr int kPatience = 20000;  // ms; only a failing test waits that long

inline bool is_readable(int fd, int timeout_ms) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, timeout_ms) == 1 && (polled.revents & POLLIN) != 0;
}

// For what has no descriptor: looks again until it is so. False when patience ends.
inline bool eventually(const std::function<bool()>& is_so) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(kPatience);
  while (!is_so()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// Tokens 0 to 255 are the bytes, kEnd ends a generation, further ones have the texts given; one of kSpokenEnd ends a
// generation too, though it has a text.
class ByteVocabulary final : public Vocabulary {
 public:
  static constexpr Token kEnd = 256;
  static constexpr Token kFirstWord = 257;
  static constexpr std::string_view kSpokenEnd = "<over>";

  explicit ByteVocabulary(std::vector<std::string> words = {}) : words_(std::move(words)), end_tokens_{kEnd} {
    for (size_t byte = 0; byte < sizeof bytes_; ++byte) bytes_[byte] = static_cast<char>(byte);
  }

  int32_t size() const override { return kFirstWord + static_cast<int32_t>(words_.size()); }
  std::string_view text(Token token) const override {
    if (token < kEnd) return {&bytes_[token], 1};
    return token == kEnd ? std::string_view() : words_[static_cast<size_t>(token - kFirstWord)];
  }
  std::string_view special_text(Token token) const override { return token == kEnd ? "<end>" : text(token); }
  bool is_end_of_generation(Token token) const override { return token == kEnd || text(token) == kSpokenEnd; }
  bool is_control(Token token) const override { return token == kEnd; }
  const std::vector<Token>& end_tokens() const override { return end_tokens_; }
  std::vector<Token> tokenize(std::string_view text, bool, bool) const override {
    std::vector<Token> tokens;
    for (const char byte : text) tokens.push_back(static_cast<uint8_t>(byte));
    return tokens;
  }

 private:
  char bytes_[256];
  const std::vector<std::string> words_;
  const std::vector<Token> end_tokens_;
};

// Holds a thread at a point until the test has seen it there and lets it go.
class Gate {
 public:
  // The thread that is held: waits while the gate is shut.
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (n_let_through_ >= 0 && n_let_through_-- == 0) is_shut_ = true;
    ++n_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !is_shut_; });
    --n_arrived_;
  }
  void shut() { shut_after(0); }
  // Lets so many through before.
  void shut_after(int n_passes) {
    std::lock_guard<std::mutex> lock(mutex_);
    n_let_through_ = n_passes;
  }
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_shut_ = false;
    n_let_through_ = -1;
    changed_.notify_all();
  }
  // The test: true once somebody stands at the shut gate.
  bool wait_until_held() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(kPatience);
    return changed_.wait_until(lock, deadline, [this] { return is_shut_ && n_arrived_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_shut_ = false;
  int n_arrived_ = 0;
  int n_let_through_ = -1;  // until it shuts; -1: it stays open
};

// A model whose sequences are told apart by the first token of their prompt, their *name*. What comes next is the
// name's script, then the end token; without a script it is made up from all tokens of the sequence, so that a lost or
// foreign token shows in the text. Notes as a fault whatever breaks the contract of Backend.
class ScriptedBackend final : public Backend {
 public:
  using Rows = std::vector<Row>;

  static constexpr int32_t kVectorSize = 2;

  explicit ScriptedBackend(int32_t context = 4096, std::vector<std::string> words = {}) : vocabulary_(words) {
    info_.context = info_.context_train = context;
    info_.eos = ByteVocabulary::kEnd;
  }

  // Behaviour, to be set before the loop starts. `before_decode` may block, throw or fail; `spoil` may change logits;
  // `on_forget` and `on_info` may throw; the loop asks for the info when it takes a task up.
  std::map<Token, std::string> scripts;
  std::function<Status(const ScriptedBackend&, const Rows&)> before_decode;
  std::function<void(Token name, int32_t position, float* logits, size_t size)> spoil;
  std::function<void(int32_t slot)> on_forget;
  std::function<void()> on_info;
  bool can_save = true;
  bool fails_to_load = false;
  std::atomic<int> n_saves{0};
  Gate gate;  // every decode() passes it

  // Any thread.
  std::vector<Adapters> adapters() const {  // of each batch
    std::lock_guard<std::mutex> lock(mutex_);
    return adapters_;
  }
  std::vector<Rows> batches() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }
  std::vector<std::string> faults() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return faults_;
  }
  // Names in the batches from `first` on.
  std::vector<Token> names_since(size_t first) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Token> names;
    for (size_t i = first; i < names_.size(); ++i) names.insert(names.end(), names_[i].begin(), names_[i].end());
    return names;
  }

  // Decode thread.
  Token name(const Row& row) const {
    if (row.position == 0) return row.token;
    const auto held = held_.find(row.slot);
    return held == held_.end() || held->second.empty() ? -1 : held->second[0];
  }
  bool has(const Rows& rows, Token wanted) const {
    for (const Row& row : rows) {
      if (name(row) == wanted) return true;
    }
    return false;
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  const ModelInfo& info() const override {
    if (on_info) on_info();
    return info_;
  }

  void use(const Adapters& adapters) override { used_ = adapters; }

  Status decode(const Rows& rows) override {
    note(rows);
    gate.pass();
    const Status status = before_decode ? judge(rows) : Status::ok();
    if (!status.is_ok()) return status;
    const auto size = static_cast<size_t>(vocabulary_.size());
    logits_.assign(rows.size() * size, 0.0f);
    for (size_t i = 0; i < rows.size(); ++i) {
      hold(rows[i]);
      if (rows[i].wants_logits) fill(rows[i], &logits_[i * size], size);
    }
    return Status::ok();
  }

  float* logits(size_t row) override { return &logits_[row * static_cast<size_t>(vocabulary_.size())]; }

  // A token's vector is its number and its position.
  Status embed(const Rows& rows) override {
    note(rows);
    gate.pass();
    const Status status = before_decode ? judge(rows) : Status::ok();
    if (!status.is_ok()) return status;
    vectors_.clear();
    for (const Row& row : rows) {
      hold(row);
      vectors_.insert(vectors_.end(), {static_cast<float>(row.token), static_cast<float>(row.position)});
    }
    return Status::ok();
  }

  const float* vector(size_t row) override { return &vectors_[row * kVectorSize]; }

  void forget(int32_t slot, int32_t position) override {
    if (on_forget) on_forget(slot);
    if (position == 0) prompt_end_.erase(slot);
    auto& held = held_[slot];
    if (held.size() > static_cast<size_t>(position)) held.resize(static_cast<size_t>(position));
  }

  bool has_snapshots() const override { return can_save; }

  Snapshot save(int32_t slot, size_t limit_bytes) override {
    const std::vector<Token>& held = held_[slot];
    Snapshot snapshot;
    snapshot.size = held.size() * sizeof(Token);
    if (snapshot.size > limit_bytes) return {};
    snapshot.bytes.reset(new uint8_t[snapshot.size]);
    std::copy_n(reinterpret_cast<const uint8_t*>(held.data()), snapshot.size, snapshot.bytes.get());
    ++n_saves;
    return snapshot;
  }

  bool load(int32_t slot, const Snapshot& snapshot, int32_t n_tokens) override {
    std::vector<Token>& held = held_[slot];
    if (!held.empty()) fault("slot " + std::to_string(slot) + " got a snapshot while it held something");
    if (fails_to_load) return false;
    held.resize(snapshot.size / sizeof(Token));
    std::memcpy(held.data(), snapshot.bytes.get(), snapshot.size);
    if (static_cast<size_t>(n_tokens) > held.size()) fault("a snapshot is shorter than what is wanted of it");
    held.resize(static_cast<size_t>(n_tokens));
    return true;
  }

 private:
  // A failed batch is half computed: its caller has to forget that half.
  Status judge(const Rows& rows) {
    const auto hold_half = [&] {
      for (size_t i = 0; i < (rows.size() + 1) / 2; ++i) hold(rows[i]);
    };
    try {
      Status status = before_decode(*this, rows);
      if (!status.is_ok()) hold_half();
      return status;
    } catch (...) {
      hold_half();
      throw;
    }
  }

  void note(const Rows& rows) {
    std::vector<Token> names;
    for (const Row& row : rows) names.push_back(name(row));
    std::lock_guard<std::mutex> lock(mutex_);
    batches_.push_back(rows);
    adapters_.push_back(used_);
    names_.push_back(names);
  }

  void fault(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    faults_.push_back(what);
  }

  void hold(const Row& row) {
    auto& held = held_[row.slot];
    if (row.position != static_cast<int32_t>(held.size())) {
      fault("slot " + std::to_string(row.slot) + " holds " + std::to_string(held.size()) + " tokens and got position " +
            std::to_string(row.position));
    }
    held.push_back(row.token);
  }

  void fill(const Row& row, float* logits, size_t size) {
    const auto& held = held_[row.slot];
    const auto script = scripts.find(held[0]);
    if (script == scripts.end()) {
      make_up(held, logits, size);
    } else {
      const size_t said = n_generated_before(row);
      const bool is_over = said >= script->second.size();
      const Token next = is_over ? ByteVocabulary::kEnd : static_cast<uint8_t>(script->second[said]);
      logits[next] = 10.0f;
    }
    if (spoil) spoil(held[0], row.position, logits, size);
  }

  // The prompt ends where logits were wanted first.
  size_t n_generated_before(const Row& row) {
    return static_cast<size_t>(row.position - prompt_end_.try_emplace(row.slot, row.position).first->second);
  }

  // Letters only, so that the text can be read; several are likely, so that a draw depends on its seed.
  static void make_up(const std::vector<Token>& held, float* logits, size_t size) {
    uint32_t hash = 2166136261u;
    for (const Token token : held) hash = (hash ^ static_cast<uint32_t>(token)) * 16777619u;
    for (size_t token = 0; token < size; ++token) {
      logits[token] = token >= 'a' && token <= 'z' ? 0.0f : -std::numeric_limits<float>::infinity();
    }
    for (int i = 0; i < 4; ++i) {
      hash = hash * 1664525u + 1013904223u;
      logits['a' + (hash >> 16) % 26] += 1.0f + static_cast<float>((hash >> 8) % 256) / 256.0f;
    }
  }

  const ByteVocabulary vocabulary_;
  ModelInfo info_;
  std::map<int32_t, std::vector<Token>> held_;  // by slot
  std::map<int32_t, int32_t> prompt_end_;       // by slot: position of the prompt's last token
  std::vector<float> logits_;
  std::vector<float> vectors_;
  Adapters used_;

  mutable std::mutex mutex_;
  std::vector<Rows> batches_;
  std::vector<Adapters> adapters_;
  std::vector<std::vector<Token>> names_;  // of each batch's rows
  std::vector<std::string> faults_;
};

class SilentListener final : public Reader::Listener {
 public:
  void on_cancel() override { ++n_cancels; }
  void on_room() override { ++n_rooms; }
  std::atomic<int> n_cancels{0};
  std::atomic<int> n_rooms{0};
};

inline std::shared_ptr<Reader> make_reader(size_t limit_bytes = 1 << 20) {
  return std::make_shared<Reader>(limit_bytes, std::make_shared<SilentListener>());
}

// What one task came to, chunk by chunk.
struct Answer {
  std::string text;     // of all chunks but an error
  std::string message;  // of an error
  int32_t n_tokens = 0;
  int n_chunks = 0;
  int n_terminal = 0;
  int n_late = 0;  // chunks after the terminal one
  Finish finish = Finish::kUnfinished;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  std::vector<float> vector;
  std::string stopping_word;
  std::string code;
  int32_t slot = -1;
  TokenList tokens;
  TokenList prompt_info;
  size_t most_prompt_info = 0;  // entries in one chunk

  void add(const Chunk& chunk) {
    ++n_chunks;
    if (chunk.tokens) tokens.append(*chunk.tokens);
    if (chunk.prompt_info) {
      prompt_info.append(*chunk.prompt_info);
      most_prompt_info = std::max(most_prompt_info, chunk.prompt_info->entries().size());
    }
    n_late += n_terminal > 0 ? 1 : 0;
    n_tokens += chunk.n_tokens;
    (chunk.finish == Finish::kError ? message : text) += chunk.text;
    if (chunk.finish == Finish::kUnfinished) return;
    ++n_terminal;
    finish = chunk.finish;
    prompt_tokens = chunk.prompt_tokens;
    cached_tokens = chunk.cached_tokens;
    vector = chunk.vector;
    stopping_word = chunk.stopping_word;
    code = chunk.code;
    slot = chunk.slot;
  }
};

// Reads one reader as a greenlet would: waits on the descriptor, then takes.
class Client {
 public:
  explicit Client(std::shared_ptr<Reader> reader, size_t n_tasks = 1) : reader_(std::move(reader)), answers_(n_tasks) {}

  Reader& reader() const { return *reader_; }
  const Answer& answer(size_t index = 0) const { return answers_[index]; }
  std::string text(size_t index = 0) const { return answers_[index].text; }

  // Waits for chunks and takes them; false when none comes in time.
  bool wait(int timeout_ms = kPatience) {
    if (!is_readable(reader_->fd(), timeout_ms)) return false;
    take();
    return true;
  }

  // Takes what is there now.
  void take() {
    reader_->take(taken_);
    for (const Chunk& chunk : taken_) answers_[static_cast<size_t>(chunk.index)].add(chunk);
  }

  bool is_over() const {
    for (const Answer& answer : answers_) {
      if (answer.n_terminal == 0) return false;
    }
    return true;
  }

  // Reads to the end. False when the end does not come.
  bool finish() {
    while (!is_over()) {
      if (!wait()) return false;
    }
    return true;
  }

 private:
  std::shared_ptr<Reader> reader_;
  std::vector<Chunk> taken_;
  std::vector<Answer> answers_;
};

inline Sampling greedy() {
  Sampling sampling;
  sampling.temperature = 0;
  return sampling;
}

// A task named `name`, with a prompt of `n_prompt` tokens.
inline Task make_task(Token name, size_t n_prompt = 1, int32_t max_tokens = -1, Sampling sampling = greedy()) {
  Task task;
  task.prompt.assign(n_prompt, 'p');
  task.prompt[0] = name;
  task.max_tokens = max_tokens;
  task.sampling = std::move(sampling);
  return task;
}

// A prompt of these tokens that is to become a vector, as it is.
inline Task make_embedding(std::vector<Token> prompt, Pooling pooling = Pooling::kMean) {
  Task task;
  task.prompt = std::move(prompt);
  task.vectors = VectorWish{pooling, ScriptedBackend::kVectorSize, -1};
  return task;
}

// A decode loop in its thread, around a scripted model that the test may set up before start().
class RunningLoop {
 public:
  explicit RunningLoop(DecodeLoop::Limits limits = {4, 64, 60}, size_t queue = 1000, int32_t context = 4096,
                       std::vector<std::string> words = {})
      : inbox(std::make_shared<Inbox>(queue + static_cast<size_t>(limits.slots))),
        backend(context, std::move(words)),
        limits_(limits) {}
  ~RunningLoop() { close("the test is over"); }

  void start() {
    loop_ = std::make_unique<DecodeLoop>(limits_, *inbox, backend);
    thread_ = std::thread([this] { loop_->run(); });
  }

  // Submits; null when refused, and `refusal` says why.
  std::unique_ptr<Client> submit(std::vector<Task> tasks, size_t limit_bytes = 1 << 20) {
    const size_t n_tasks = tasks.size();
    for (size_t i = 0; i < n_tasks; ++i) tasks[i].index = static_cast<int32_t>(i);
    auto reader = std::make_shared<Reader>(limit_bytes, inbox);
    refusal = inbox->submit(std::move(tasks), reader);
    return refusal.is_ok() ? std::make_unique<Client>(std::move(reader), n_tasks) : nullptr;
  }
  std::unique_ptr<Client> submit(Task task, size_t limit_bytes = 1 << 20) {
    return submit(std::vector<Task>{std::move(task)}, limit_bytes);
  }

  corosrv_stats stats() { return loop_->snapshot(); }
  std::vector<corosrv_slot> slots() { return loop_->slots(); }

  void close(const std::string& reason) {
    inbox->close(reason);  // before another step is taken
    backend.gate.open();
    if (thread_.joinable()) thread_.join();
  }

  const std::shared_ptr<Inbox> inbox;
  ScriptedBackend backend;
  Status refusal = Status::ok();

 private:
  const DecodeLoop::Limits limits_;
  std::unique_ptr<DecodeLoop> loop_;
  std::thread thread_;
};

}  // namespace corosrv
