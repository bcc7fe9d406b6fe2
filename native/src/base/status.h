// What went wrong: a code of the C API and a sentence.
#pragma once

#include <string>
#include <utility>

#include "corosrv.h"

namespace corosrv {

class [[nodiscard]] Status {
 public:
  static Status ok() { return Status(COROSRV_OK, {}); }
  Status(corosrv_code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool is_ok() const { return code_ == COROSRV_OK; }
  corosrv_code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  corosrv_code code_;
  std::string message_;
};

}  // namespace corosrv
