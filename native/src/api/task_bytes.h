// A task of the C API as bytes, for recordings.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "corosrv.h"
#include "model/backend.h"

namespace corosrv {

// The same build reads them again. What the task points to is in them.
std::string to_bytes(const corosrv_task& task, const ModelInfo& model);

// A task that was read from bytes, with what it points to.
class StoredTask {
 public:
  StoredTask();
  ~StoredTask();
  StoredTask(const StoredTask&) = delete;
  StoredTask& operator=(const StoredTask&) = delete;

  // The task is whole afterwards, though it may be one that check_task() refuses; or the status says why it is not.
  Status read(const std::string& bytes, const ModelInfo& model);
  const corosrv_task& task() const { return task_; }

 private:
  struct Parts;

  corosrv_task task_{};
  std::unique_ptr<Parts> parts_;
};

}  // namespace corosrv
