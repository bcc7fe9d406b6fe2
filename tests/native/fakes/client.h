// A client that reads as a greenlet would.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "handover/reader.h"
#include "waiting.h"

namespace corosrv {

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
  int32_t drafted_tokens = 0;
  int32_t accepted_tokens = 0;
  std::vector<float> vector;
  std::string stopping_word;
  std::string code;
  int32_t slot = -1;
  int32_t n_dropped = 0;
  std::vector<Token> ids;
  SamplerState state{};  // behind the last of them
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
    ids.insert(ids.end(), chunk.ids.begin(), chunk.ids.end());
    if (!chunk.ids.empty()) state = chunk.state;
    n_late += n_terminal > 0 ? 1 : 0;
    n_tokens += chunk.n_tokens;
    (chunk.finish == Finish::kError ? message : text) += chunk.text;
    if (chunk.finish == Finish::kUnfinished) return;
    ++n_terminal;
    finish = chunk.finish;
    prompt_tokens = chunk.prompt_tokens;
    cached_tokens = chunk.cached_tokens;
    drafted_tokens = chunk.drafted_tokens;
    accepted_tokens = chunk.accepted_tokens;
    vector = chunk.vector;
    stopping_word = chunk.stopping_word;
    code = chunk.code;
    slot = chunk.slot;
    n_dropped = chunk.n_dropped;
  }
};

// Reads one reader as a greenlet would: waits on the descriptor, if there is one, then takes.
class Client {
 public:
  explicit Client(std::shared_ptr<Reader> reader, size_t n_tasks = 1) : reader_(std::move(reader)), answers_(n_tasks) {}

  Reader& reader() const { return *reader_; }
  const Answer& answer(size_t index = 0) const { return answers_[index]; }
  std::string text(size_t index = 0) const { return answers_[index].text; }

  // Waits for chunks and takes them; false when none comes in time.
  bool wait(int timeout_ms = kPatience) {
    const bool has_chunks = reader_->is_open() ? is_readable(reader_->fd(), timeout_ms)
                                               : eventually([this] { return reader_->has_chunks(); });
    if (!has_chunks) return false;
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

}  // namespace corosrv
