// Which mutex guards what, in a form that clang checks (-Wthread-safety) and gcc ignores.
#pragma once

#include <mutex>

#if defined(__clang__)
#define COROSRV_ANNOTATE(x) __attribute__((x))
#else
#define COROSRV_ANNOTATE(x)
#endif

#define GUARDED_BY(mutex) COROSRV_ANNOTATE(guarded_by(mutex))
#define REQUIRES(mutex) COROSRV_ANNOTATE(requires_capability(mutex))

namespace corosrv {

// std::mutex with the annotations that libstdc++ leaves out; works with std::condition_variable_any.
class COROSRV_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() COROSRV_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() COROSRV_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class COROSRV_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) COROSRV_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() COROSRV_ANNOTATE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace corosrv
