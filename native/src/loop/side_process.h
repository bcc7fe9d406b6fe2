// A process that computes beside the loop, and has the processors between its steps.
#pragma once

#include <cstdint>

#include "base/thread_annotations.h"
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

  // Any thread: from the next step on it is this process, whose `share` is its time as a part of a step's. Takes over
  // `pidfd`; -1 for no process any more.
  void set(int pidfd, double share);

  // Decode thread, and all that follows. Stops the process, before a step.
  void suspend();
  // Lets the process run after a step that took `step`; the `threads` that compute steps sleep meanwhile.
  void run_after(Clock::duration step, int32_t threads);
  // Lets the process run for as long as there are no steps.
  void release();

 private:
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

  void take_change();
  void send(int signal);

  Descriptor pidfd_;  // the decode thread's, as are the next two
  double share_ = 0;
  bool is_stopped_ = false;

  Mutex mutex_;
  bool is_changed_ GUARDED_BY(mutex_) = false;
  Descriptor next_pidfd_ GUARDED_BY(mutex_);
  double next_share_ GUARDED_BY(mutex_) = 0;
};

}  // namespace corosrv
