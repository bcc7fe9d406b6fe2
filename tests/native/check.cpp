#include "check.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

namespace check {

namespace {

constexpr std::chrono::seconds kDeadline(180);  // for one test, under a sanitizer on a busy machine

struct Test {
  const char* sentence;
  const char* file;
  void (*run)();
};

std::vector<Test>& tests() {
  static std::vector<Test> registered;
  return registered;
}

std::mutex mutex;
int failures = 0;  // of the running test

// Aborts the program when a test does not end in time, and says which.
class Watchdog {
 public:
  explicit Watchdog(const char* sentence) : thread_([this, sentence] { watch(sentence); }) {}
  ~Watchdog() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    over_.notify_one();
    thread_.join();
  }

 private:
  void watch(const char* sentence) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto deadline = std::chrono::system_clock::now() + kDeadline;
    if (over_.wait_until(lock, deadline, [this] { return is_over_; })) return;
    std::fprintf(stderr, "HANGS: %s\n", sentence);
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;
};

bool passes(const Test& test) {
  failures = 0;
  {
    Watchdog watchdog(test.sentence);
    try {
      test.run();
    } catch (const Abandoned&) {
    } catch (const std::exception& error) {
      fail(test.file, 0, std::string("threw: ") + error.what());
    }
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (failures > 0) std::printf("FAILED: %s\n", test.sentence);
  return failures == 0;
}

}  // namespace

Registered::Registered(const char* sentence, const char* file, void (*run)()) {
  tests().push_back({sentence, file, run});
}

void fail(const char* file, int line, const std::string& what) {
  std::lock_guard<std::mutex> lock(mutex);
  if (++failures <= 10) std::printf("%s:%d: %s\n", file, line, what.c_str());
}

}  // namespace check

int main(int argc, char** argv) {
  const bool is_timed = std::getenv("CHECK_TIMES") != nullptr;
  const char* filter = argc == 3 && std::strcmp(argv[1], "--filter") == 0 ? argv[2] : "";
  if (argc != 1 && *filter == '\0') {
    std::fprintf(stderr, "usage: %s [--filter WORDS OF A SENTENCE OR FILE]\n", argv[0]);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int passed = 0;
  int failed = 0;
  for (const auto& test : check::tests()) {
    if (std::strstr(test.sentence, filter) == nullptr && std::strstr(test.file, filter) == nullptr) continue;
    const auto begin = std::chrono::steady_clock::now();
    ++(check::passes(test) ? passed : failed);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (is_timed) std::printf("%7.3f s  %s\n", taken.count(), test.sentence);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0 ? 1 : 0;
}
