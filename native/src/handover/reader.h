// The receiving end of one job's results: where the decode thread and the reader's thread meet.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/event_fd.h"
#include "base/thread_annotations.h"
#include "model/types.h"

namespace corosrv {

// Shared by the handle that Python holds and by every sequence that writes to it; the last of them closes the eventfd.
//
// The order that makes it safe: put() makes a chunk readable under the mutex and signal() comes afterwards (I1), and
// only when the reader was empty (I3). take() clears the descriptor before it takes, so a chunk pushed in between
// leaves it readable: one idle wake-up, nothing lost. A signal that comes after its chunk was taken is cleared by the
// take that follows the wake-up it causes. Edge-triggered watching needs no clearing: every signal is an edge, also of
// a descriptor that is readable already.
//
// A vector under a mutex and not a lock-free ring: unread chunks of one task merge, so that whatever piled up leaves
// in one piece, and the buffer has no capacity to choose. The lock is held for a swap or an append.
class Reader {
 public:
  // Who hears of the reader's side; called on its thread, without the lock.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_cancel() = 0;  // once
    virtual void on_room() = 0;    // a take() made room in a reader that was seen full
  };

  // `limit_bytes`: unread text, numbers, and what is told of tokens, at which is_full() says so.
  Reader(size_t limit_bytes, std::shared_ptr<Listener> listener);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // False when the process had no descriptor left. Nobody is woken then: the reader is to be looked at again and again
  // with has_chunks(). All else holds as it does with a descriptor.
  bool is_open() const { return event_fd_.is_open(); }
  int fd() const { return event_fd_.get(); }

  // Decode thread. Makes a chunk readable; true when signal() has to follow, which it does not when an earlier one is
  // still due.
  bool put(Chunk chunk);
  // Decode thread. Makes the descriptor readable.
  void signal();
  // Decode thread. Both; true when the eventfd was written.
  bool push(Chunk chunk);

  // Decode thread. True while what is unread is at the limit; the caller pauses its sequence, and the listener hears
  // of room.
  bool is_full();

  // The reader's thread: takes all unread chunks, oldest first. `taken` is emptied first and its memory reused. Whoever
  // polls the descriptor has it cleared; whoever watches its edges need not.
  void take(std::vector<Chunk>& taken, bool clear = true);

  // Any thread: whether take() would give something.
  bool has_chunks();

  // Any thread. Twice is harmless.
  void cancel();
  bool is_cancelled() const { return is_cancelled_; }

  // Any thread. Thoughts that are under way or yet to begin are ended, where they have a budget. Twice is harmless.
  void end_thoughts() { ends_thoughts_ = true; }
  bool ends_thoughts() const { return ends_thoughts_; }

  // Readers alive in this process, for stats and leak tests.
  static int alive();

 private:
  const size_t limit_bytes_;
  const std::shared_ptr<Listener> listener_;
  const EventFd event_fd_;
  std::atomic<bool> is_cancelled_{false};
  std::atomic<bool> ends_thoughts_{false};

  Mutex mutex_;
  std::vector<Chunk> chunks_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  bool was_seen_full_ GUARDED_BY(mutex_) = false;

  bool is_due_ = false;  // the decode thread's own: put() asked for a signal that has not come
};

}  // namespace corosrv
