// What somebody wants of a slot: a copy of what its last sequence left, or this put back, or forgotten.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/event_fd.h"
#include "base/status.h"
#include "model/backend.h"
#include "model/types.h"

namespace corosrv {

// A sequence as far as it was computed, with what it was computed with.
struct SlotContent {
  std::vector<Token> tokens;
  Adapters adapters;
  std::shared_ptr<const Snapshot> snapshot;  // of `tokens`, and perhaps of more behind them
};

// Shared by whoever waits for it and by the decode thread, which answers once; the last of them closes the eventfd.
class SlotRequest {
 public:
  enum class Action { kSave, kRestore, kErase };

  // `owner`: on whose behalf; what others left is not found. `content`: of kRestore.
  SlotRequest(Action action, int32_t slot, uint64_t owner, SlotContent content = {})
      : action_(action), slot_(slot), owner_(owner), content_(std::move(content)) {}

  Action action() const { return action_; }
  int32_t slot() const { return slot_; }
  uint64_t owner() const { return owner_; }

  // False when the process had no descriptor left: the request is then of no use.
  bool is_open() const { return event_fd_.is_open(); }
  // Readable once there is an answer, and from then on.
  int fd() const { return event_fd_.get(); }

  // Any thread: nobody waits any more. It is then not begun, unless it was.
  void abandon() { is_abandoned_ = true; }
  bool is_abandoned() const { return is_abandoned_; }

  // Decode thread, once, before that what changes the content.
  SlotContent& content() { return content_; }
  void answer(Status status) {
    status_ = std::move(status);
    is_answered_.store(true, std::memory_order_release);
    event_fd_.signal();
  }

  // Any other thread. Behind the answer the rest stands still: what was saved, restored or erased.
  bool is_answered() const { return is_answered_.load(std::memory_order_acquire); }
  const Status& status() const { return status_; }
  const SlotContent& content() const { return content_; }

 private:
  const Action action_;
  const int32_t slot_;
  const uint64_t owner_;
  const EventFd event_fd_;
  std::atomic<bool> is_abandoned_{false};
  std::atomic<bool> is_answered_{false};
  SlotContent content_;
  Status status_ = Status::ok();
};

}  // namespace corosrv
