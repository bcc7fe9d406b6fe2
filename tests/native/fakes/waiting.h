// Waiting with an end: for a descriptor, or for anything that can be looked at.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <thread>

#include "model/types.h"

namespace corosrv {

constexpr int kPatience = 20000;  // ms; only a failing test waits that long

inline bool is_readable(int fd, int timeout_ms) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, timeout_ms) == 1 && (polled.revents & POLLIN) != 0;
}

// For what has no descriptor: looks again until it is so. False when patience ends.
inline bool eventually(const std::function<bool()>& is_so) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(kPatience);
  while (!is_so()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace corosrv
