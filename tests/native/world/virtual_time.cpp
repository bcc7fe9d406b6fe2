#include "virtual_time.h"

#include <pthread.h>
#include <time.h>

#include <cerrno>

using corosrv::Clock;
using corosrv::VirtualTime;

namespace {

int wait(pthread_mutex_t* mutex, Clock::time_point until) {
  pthread_mutex_unlock(mutex);
  const bool is_late = VirtualTime::current()->wait(until);
  pthread_mutex_lock(mutex);
  return is_late ? ETIMEDOUT : 0;
}

}  // namespace

// The dynamic linker finds these before the C library's, also for libstdc++. Before the world's time there is none.
extern "C" {

int clock_gettime(clockid_t, timespec* time) noexcept {
  const VirtualTime* const current = VirtualTime::current();
  const auto now = current == nullptr ? Clock::duration() : current->now().time_since_epoch();
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(now);
  time->tv_sec = whole.count();
  time->tv_nsec = std::chrono::nanoseconds(now - whole).count();
  return 0;
}

int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t* mutex) { return wait(mutex, Clock::time_point::max()); }

int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t* mutex, clockid_t, const timespec* until) {
  return wait(mutex, Clock::time_point(std::chrono::seconds(until->tv_sec) + std::chrono::nanoseconds(until->tv_nsec)));
}
}
