// Which readers are to be woken when a step is over.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "handover/reader.h"

namespace corosrv {

// Puts chunks into readers at once and wakes them together, each at most once, when all that a step has to say is
// there: a reader of many tasks, or one that is read while the step goes on, is not woken again and again, and the
// front finds all readers of a step ready at the same time. Used by the decode thread alone.
class Signals {
 public:
  Signals() = default;
  ~Signals() { send(); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void push(const std::shared_ptr<Reader>& reader, Chunk chunk) {
    if (reader->put(std::move(chunk))) due_.push_back(reader);
  }

  // Wakes those that are due; returns how many. Nothing is to be waited for before this was called.
  size_t send() {
    for (const auto& reader : due_) reader->signal();
    const size_t n_sent = due_.size();
    due_.clear();
    return n_sent;
  }

 private:
  std::vector<std::shared_ptr<Reader>> due_;
};

}  // namespace corosrv
