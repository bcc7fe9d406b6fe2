// What other threads want of the decode thread: new tasks, cancellations, slot requests, an end.
#pragma once

#include <condition_variable>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "handover/end_rate.h"
#include "handover/reader.h"
#include "handover/slot_request.h"
#include "model/types.h"

namespace corosrv {

// A task on its way to the loop, with the reader that waits for it.
struct Submission {
  Task task;
  std::shared_ptr<Reader> reader;
  Clock::time_point submitted;
};

// The code of what ends because its server does.
constexpr const char* kShuttingDown = "server_shutting_down";
// Of what waited for its first slot longer than it may, and of what was read slower than it may be.
constexpr const char* kQueueTimeout = "queue_timeout";
constexpr const char* kClientTooSlow = "client_too_slow";
// Of what had begun when its deadline passed.
constexpr const char* kDeadlineExceeded = "deadline_exceeded";

// Of embedding rows that lead to numbers which are none.
constexpr const char* kRowsNotFinite = "embeds_not_finite";

// The one terminal chunk of a task that never became a sequence.
Chunk error_chunk(int32_t index, std::string message, const char* code = "");

// Bounded: all tasks that were taken and have not ended are counted, wherever they are. The decode thread sleeps here
// when it has nothing to do, and only here.
class Inbox final : public Reader::Listener {
 public:
  // What the loop finds when it looks.
  struct Mail {
    std::vector<Submission> submissions;
    std::vector<std::shared_ptr<SlotRequest>> slot_requests;
    std::vector<Token> shown;        // see Backend::show; for who writes down what the loop got
    bool has_cancellations = false;  // some reader's is_cancelled() has turned true
    bool is_draining = false;        // end everything with `reason`
    bool is_closing = false;         // and then leave
    std::string reason;
  };

  static constexpr size_t kNoLimit = SIZE_MAX;

  // `capacity`: tasks that may run and wait, together; `of_one`: those of one owner among them, but of owner 0, who is
  // anybody.
  explicit Inbox(size_t capacity, size_t of_one = kNoLimit) : capacity_(capacity), of_one_(of_one) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Any thread: all of `tasks`, which are one owner's, or none.
  Status submit(std::vector<Task> tasks, const std::shared_ptr<Reader>& reader);
  // Any thread: seconds after which so many tasks of this owner, which submit() has refused, should have room. Counts
  // on their coming then, so that who is refused next is told a later time.
  double retry_after(size_t count, uint64_t owner);
  // Any thread: these tokens are shown from the next task on; the loop need not look.
  void note_shown(const std::vector<Token>& tokens);
  // Any thread: how many there may be at once is the caller's to see to.
  Status request_slot(std::shared_ptr<SlotRequest> request);
  // Any thread: the loop looks again, at cancelled readers too.
  void on_cancel() override;
  void on_room() override;
  // Any thread: refuses what comes later and ends what is there, with these words.
  void drain(const std::string& reason);
  void close(const std::string& reason);

  // Decode thread. Waits for mail, unless `has_work`; no longer than `patience`, of which negative is any.
  Mail take(bool has_work, Clock::duration patience = Clock::duration(-1));
  // Decode thread: tasks of these owners have ended, and no longer count against the capacity.
  void ended(const std::vector<uint64_t>& owners);

  // Any thread.
  size_t in_flight();
  uint64_t refused();
  uint64_t readers_polled();  // that were submitted without a descriptor

 private:
  // Of one owner, that has some.
  struct Owned {
    size_t in_flight = 0;
    EndRate ends;
    RoomForecast room;
  };

  void count(size_t count, uint64_t owner, Clock::time_point now) REQUIRES(mutex_);
  // What keeps a submission out, or ok.
  Status room_for(size_t count, uint64_t owner) REQUIRES(mutex_);

  const size_t capacity_;
  const size_t of_one_;
  std::condition_variable_any changed_;
  Mutex mutex_;
  Mail mail_ GUARDED_BY(mutex_);
  bool is_woken_ GUARDED_BY(mutex_) = false;
  size_t in_flight_ GUARDED_BY(mutex_) = 0;
  EndRate ends_ GUARDED_BY(mutex_);
  RoomForecast room_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Owned> owned_ GUARDED_BY(mutex_);  // by owner, none of them 0
  uint64_t refused_ GUARDED_BY(mutex_) = 0;
  uint64_t readers_polled_ GUARDED_BY(mutex_) = 0;
};

}  // namespace corosrv
