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

void SideProcess::set(int pidfd, double share) {
  Descriptor next(pidfd);
  MutexLock lock(mutex_);
  next_pidfd_ = std::move(next);
  next_share_ = share;
  is_changed_ = true;
}

void SideProcess::suspend() {
  take_change();
  if (!is_stopped_) send(SIGSTOP);
  is_stopped_ = pidfd_.get() >= 0;
}

void SideProcess::run_after(Clock::duration step, int32_t threads) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(step * share_);
  release();
  if (pidfd_.get() < 0) return;  // there is none, or it has ended
  sleep_together(until, threads);
  suspend();
}

void SideProcess::release() {
  if (is_stopped_) send(SIGCONT);
  is_stopped_ = false;
}

void SideProcess::take_change() {
  MutexLock lock(mutex_);
  if (!is_changed_) return;
  release();
  pidfd_ = std::move(next_pidfd_);
  next_pidfd_ = Descriptor();
  share_ = next_share_;
  is_changed_ = false;
}

// A process that has ended, or that may not be stopped here, is none.
void SideProcess::send(int signal) {
  if (pidfd_.get() < 0) return;
  if (::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) != 0) pidfd_ = Descriptor();
}

}  // namespace corosrv
