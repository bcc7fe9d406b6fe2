#include "handover/reader.h"

#include <utility>

namespace corosrv {

namespace {

std::atomic<int> readers_alive{0};

// The unread chunk that `chunk` continues, or null. A terminal chunk is never continued.
Chunk* continued_by(std::vector<Chunk>& unread, const Chunk& chunk) {
  for (auto last = unread.rbegin(); last != unread.rend(); ++last) {
    if (last->index != chunk.index) continue;
    // An error's text is its message and stays apart from the answer's text.
    return chunk.finish == Finish::kError ? nullptr : &*last;
  }
  return nullptr;
}

void merge(std::unique_ptr<TokenList>& into, std::unique_ptr<TokenList>&& more) {
  if (into && more) {
    into->append(*more);
  } else if (more) {
    into = std::move(more);
  }
}

void merge(Chunk& into, Chunk&& chunk) {
  into.text += chunk.text;
  chunk.text = std::move(into.text);
  chunk.n_tokens += into.n_tokens;
  merge(into.tokens, std::move(chunk.tokens));
  chunk.tokens = std::move(into.tokens);
  merge(into.prompt_info, std::move(chunk.prompt_info));
  chunk.prompt_info = std::move(into.prompt_info);
  if (chunk.ids.empty()) chunk.state = into.state;
  into.ids.insert(into.ids.end(), chunk.ids.begin(), chunk.ids.end());
  chunk.ids = std::move(into.ids);
  into = std::move(chunk);
}

}  // namespace

Reader::Reader(size_t limit_bytes, std::shared_ptr<Listener> listener)
    : limit_bytes_(limit_bytes), listener_(std::move(listener)) {
  ++readers_alive;
}

Reader::~Reader() { --readers_alive; }

int Reader::alive() { return readers_alive; }

void Reader::cancel() {
  if (!is_cancelled_.exchange(true)) listener_->on_cancel();
}

bool Reader::push(Chunk chunk) {
  const bool is_due = put(std::move(chunk));
  if (is_due) signal();
  return is_due;
}

void Reader::signal() {
  is_due_ = false;
  event_fd_.signal();
}

bool Reader::put(Chunk chunk) {
  bool was_empty;
  {
    MutexLock lock(mutex_);
    was_empty = chunks_.empty();
    bytes_ += chunk.bytes();
    if (Chunk* unread = continued_by(chunks_, chunk)) {
      merge(*unread, std::move(chunk));
    } else {
      chunks_.push_back(std::move(chunk));
    }
  }
  if (!was_empty || is_due_ || !is_open()) return false;
  is_due_ = true;
  return true;
}

bool Reader::is_full() {
  MutexLock lock(mutex_);
  was_seen_full_ = bytes_ >= limit_bytes_;
  return was_seen_full_;
}

bool Reader::has_chunks() {
  MutexLock lock(mutex_);
  return !chunks_.empty();
}

void Reader::take(std::vector<Chunk>& taken, bool clear) {
  taken.clear();
  if (clear) event_fd_.clear();
  bool has_room_again;
  {
    MutexLock lock(mutex_);
    chunks_.swap(taken);
    bytes_ = 0;
    has_room_again = std::exchange(was_seen_full_, false);
  }
  if (has_room_again) listener_->on_room();
}

}  // namespace corosrv
