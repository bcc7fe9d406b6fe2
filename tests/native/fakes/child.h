// A child process that a test stops, and looks at.
#pragma once

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include "waiting.h"

namespace corosrv {

// A child that waits for signals.
class Child {
 public:
  Child() : pid_(::fork()) {
    while (pid_ == 0) ::pause();
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int open() const { return static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)); }

  bool is_stopped() const { return state() == 'T'; }
  bool becomes_stopped() const {
    return eventually([this] { return is_stopped(); });
  }
  bool goes_on() const {
    return eventually([this] { return state() == 'S'; });
  }

  void end() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  char state() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const size_t end = text.rfind(')');
    return end == std::string::npos ? '?' : text[end + 2];
  }

  pid_t pid_;
};

}  // namespace corosrv
