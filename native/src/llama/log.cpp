#include "llama/log.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "llama/handles.h"

namespace corosrv {

namespace {

class NativeLog {
 public:
  static void install() { llama_log_set(&NativeLog::receive, nullptr); }

  static std::string take_errors() {
    std::lock_guard<std::mutex> lock(mutex());
    return std::exchange(errors(), {});
  }

 private:
  static void receive(ggml_log_level level, const char* text, void*) {
    if (level != GGML_LOG_LEVEL_ERROR) return;
    std::lock_guard<std::mutex> lock(mutex());
    if (errors().size() < 1000) errors() += text;
  }
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::string& errors() {
    static std::string errors;
    return errors;
  }
};

}  // namespace

void keep_llama_errors() {
  NativeLog::install();
  NativeLog::take_errors();
}

std::string take_last_error() {
  std::string reason = NativeLog::take_errors();
  reason.resize(std::min(reason.find('\n'), reason.size()));
  const size_t colon = reason.find(": ");
  return colon == std::string::npos ? reason : reason.substr(colon + 2);
}

}  // namespace corosrv
