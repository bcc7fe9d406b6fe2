// Descriptors of somebody else, who shares the process with the engine and must never find a byte of ours (I2).
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "check.h"

namespace corosrv {

// Opens and closes pipes, socket pairs and eventfds all the time, in its own thread. None of them is ever written to,
// so whatever turns up in one, or a descriptor that somebody closed, is a fault.
class Foreigner {
 public:
  Foreigner() : thread_([this] { run(); }) {}
  ~Foreigner() {
    is_over_ = true;
    thread_.join();
  }

 private:
  static constexpr size_t kDescriptors = 24;

  void run() {
    while (!is_over_) {
      std::array<int, kDescriptors> opened;
      for (size_t i = 0; i < kDescriptors; i += 3) open_three(&opened[i]);
      std::this_thread::yield();
      for (const int fd : opened) check_untouched(fd);
      for (const int fd : opened) {
        if (::close(fd) != 0) check::fail(__FILE__, __LINE__, "somebody closed a foreign descriptor");
      }
    }
  }

  void open_three(int* opened) {
    opened[0] = ::eventfd(0, EFD_NONBLOCK);
    const bool is_pipe = (++n_opened_ & 1) != 0;
    const int failed = is_pipe ? ::pipe(opened + 1) : ::socketpair(AF_UNIX, SOCK_STREAM, 0, opened + 1);
    if (opened[0] < 0 || failed != 0) check::fail(__FILE__, __LINE__, "no descriptor left for the foreigner");
  }

  static void check_untouched(int fd) {
    pollfd polled{fd, POLLIN, 0};
    if (::poll(&polled, 1, 0) != 0) {
      check::fail(__FILE__, __LINE__,
                  "a foreign descriptor was written to or closed: revents " + std::to_string(polled.revents));
    }
  }

  std::atomic<bool> is_over_{false};
  int n_opened_ = 0;
  std::thread thread_;
};

}  // namespace corosrv
