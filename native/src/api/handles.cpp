#include "api/handles.h"

#include <algorithm>
#include <cstring>

#include "api/to_c.h"

namespace corosrv {

Status forked() {
  return Status(StatusCode::kForked,
                "this engine was opened before a fork() and serves the parent process only; open one in each process "
                "after forking (gunicorn: do not use --preload)");
}

int report(const Status& status, char* message, size_t message_size) {
  if (!status.is_ok() && message != nullptr && message_size > 0) {
    const size_t size = std::min(status.message().size(), message_size - 1);
    std::memcpy(message, status.message().data(), size);
    message[size] = '\0';
  }
  return to_c(status.code());
}

const Backend* ready_backend(corosrv_engine* engine, Status& status) {
  if (!engine->fork_guard.is_same_process()) {
    status = forked();
    return nullptr;
  }
  const Backend* backend = engine->engine->backend();
  if (backend == nullptr) status = Status(StatusCode::kNotReady, "the model is not loaded yet");
  return backend;
}

}  // namespace corosrv
