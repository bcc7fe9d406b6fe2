// Owner of one eventfd.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace corosrv {

// Closes its descriptor when the last owner lets go, and never earlier: whoever can signal holds the object, so the
// number that is written to cannot belong to somebody else's socket (invariant I2).
class EventFd {
 public:
  EventFd() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~EventFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  // False when the process had no descriptor left. Signalling and clearing then do nothing.
  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // Makes the descriptor readable. Any thread.
  void signal() const {
    if (fd_ < 0) return;
    const uint64_t one = 1;
    while (::write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  // Makes it unreadable until the next signal. Any thread.
  void clear() const {
    if (fd_ < 0) return;
    uint64_t count;
    while (::read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }

 private:
  const int fd_;
};

}  // namespace corosrv
