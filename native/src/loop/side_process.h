// A process that computes beside the loop, and has the processors between its steps.
#pragma once

#include <cstdint>

#include "base/thread_annotations.h"
#include "loop/side_share.h"
#include "model/types.h"

namespace corosrv {

// Left to the kernel, such a process would interrupt steps by time slices of milliseconds, each of which all sequences
// wait for. So it is stopped while a step is computed, and continued for a part of the step's time after it, in which
// the loop computes nothing.
class SideProcess {
 public:
  SideProcess() = default;
  ~SideProcess() { release(); }
  SideProcess(const SideProcess&) = delete;
  SideProcess& operator=(const SideProcess&) = delete;

  // Any thread: from the next step on it is this process, which begins to wait now. Takes over `pidfd`; -1 for no
  // process any more.
  void set(int pidfd, SideShare share);
  // Any thread: how long such processes were stopped, all told.
  Clock::duration held();

  // Decode thread, and all that follows. Stops the process, before a step.
  void suspend();
  // Lets the process run after a step that took `step` of so many sequences; see side_time(). The `threads` that
  // compute steps sleep meanwhile.
  void run_after(Clock::duration step, int32_t n_running, bool delays_tokens, int32_t threads);
  // Lets the process run for as long as there are no steps.
  void release();

 private:
  static constexpr Clock::time_point kRuns = Clock::time_point::max();

  class Descriptor {
   public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Descriptor& operator=(Descriptor&& other) noexcept;
    int get() const { return fd_; }

   private:
    int fd_ = -1;
  };

  struct Change {
    Descriptor pidfd;
    SideShare share;
    Clock::time_point since;  // it waits
  };

  void take_change();
  void send(int signal);
  void set_stopped(bool is_stopped);

  Change now_;  // the decode thread's, as is the next
  bool is_stopped_ = false;

  Mutex mutex_;
  bool is_changed_ GUARDED_BY(mutex_) = false;
  Change next_ GUARDED_BY(mutex_);
  Clock::duration held_ GUARDED_BY(mutex_) = Clock::duration::zero();  // until the last time that it went on
  Clock::time_point stopped_at_ GUARDED_BY(mutex_) = kRuns;
};

}  // namespace corosrv
