#include "loop/side_process.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <utility>

namespace corosrv {

namespace {

// Puts the threads to sleep that OpenMP keeps for this one: left alone, they would spin until the next step.
void sleep_together(Clock::time_point until, [[maybe_unused]] int32_t threads) {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
  std::this_thread::sleep_until(until);
}

}  // namespace

SideProcess::Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

SideProcess::Descriptor& SideProcess::Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void SideProcess::set(int pidfd, SideShare share) {
  Descriptor next(pidfd);
  MutexLock lock(mutex_);
  next_.pidfd = std::move(next);
  next_.share = share;
  next_.since = Clock::now();
  is_changed_ = true;
}

Clock::duration SideProcess::held() {
  MutexLock lock(mutex_);
  return stopped_at_ == kRuns ? held_ : held_ + (Clock::now() - stopped_at_);
}

void SideProcess::suspend() {
  take_change();
  if (!is_stopped_) send(SIGSTOP);
  set_stopped(now_.pidfd.get() >= 0);
}

void SideProcess::run_after(Clock::duration step, int32_t n_running, bool delays_tokens, int32_t threads) {
  if (now_.pidfd.get() < 0) return;  // there is none
  const auto begin = Clock::now();
  const double run_s = side_time(now_.share, n_running, delays_tokens, seconds(begin - now_.since), seconds(step));
  release();
  if (now_.pidfd.get() < 0) return;  // it has ended
  sleep_together(begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(run_s)), threads);
  suspend();
}

void SideProcess::release() {
  if (is_stopped_) send(SIGCONT);
  set_stopped(false);
}

void SideProcess::take_change() {
  {
    MutexLock lock(mutex_);
    if (!is_changed_) return;
  }
  release();
  MutexLock lock(mutex_);
  now_ = std::exchange(next_, Change());
  is_changed_ = false;
}

void SideProcess::set_stopped(bool is_stopped) {
  if (is_stopped == is_stopped_) return;
  is_stopped_ = is_stopped;
  const auto now = Clock::now();
  MutexLock lock(mutex_);
  if (!is_stopped) held_ += now - stopped_at_;
  stopped_at_ = is_stopped ? now : kRuns;
}

// A process that has ended, or that may not be stopped here, is none.
void SideProcess::send(int signal) {
  if (now_.pidfd.get() < 0) return;
  if (::syscall(SYS_pidfd_send_signal, now_.pidfd.get(), signal, nullptr, 0) != 0) now_.pidfd = Descriptor();
}

}  // namespace corosrv
