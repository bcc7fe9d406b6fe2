// Which readers are to be woken when a step is over.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "handover/reader.h"
#include "handover/tape.h"

namespace corosrv {

// Puts chunks into readers at once and wakes them together, each at most once, when all that a step has to say is
// there: a reader of many tasks, or one that is read while the step goes on, is not woken again and again, and the
// front finds all readers of a step ready at the same time. Used by the decode thread alone.
class Signals {
 public:
  // `tape`: is told of what the loop sees of readers, and outlives this; null: nobody is.
  explicit Signals(Tape* tape = nullptr) : tape_(tape) {}
  ~Signals() { send(); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void push(const std::shared_ptr<Reader>& reader, Chunk chunk) {
    if (reader->put(std::move(chunk))) due_.push_back(reader);
  }

  // What the loop sees of a reader, and decides by.
  bool is_full(Reader& reader) { return seen(reader.is_full()); }
  bool is_cancelled(const Reader& reader) { return seen(reader.is_cancelled()); }
  bool ends_thoughts(const Reader& reader) { return seen(reader.ends_thoughts()); }
  // Any other thing that changes outside of the loop.
  bool seen(bool found) { return tape_ == nullptr ? found : tape_->look(found); }

  // Wakes those that are due; returns how many. Nothing is to be waited for before this was called.
  size_t send() {
    for (const auto& reader : due_) reader->signal();
    const size_t n_sent = due_.size();
    due_.clear();
    return n_sent;
  }

 private:
  Tape* const tape_;
  std::vector<std::shared_ptr<Reader>> due_;
};

}  // namespace corosrv
