// What went wrong: a code for programs and a sentence for people.
#pragma once

#include <string>
#include <utility>

namespace corosrv {

// The C API has the same codes under its own names (api/to_c.h).
enum class StatusCode {
  kOk,
  kInvalid,         // an argument is out of range; the message names it
  kQueueFull,       // as many jobs wait as may wait; nothing was taken
  kNoDescriptor,    // the process has no file descriptor left for an eventfd
  kNotReady,        // the model is still loading, or failed to load
  kClosed,          // the engine is closing or closed
  kForked,          // the handle was made before a fork()
  kTooLong,         // the prompt leaves no room in the context of a slot
  kInternal,        // out of memory or a bug; the message has the words
  kInvalidGrammar,  // the message says where and why
  kNoRoom,          // the KV cache is full; never leaves the loop, where sequences then wait for each other
  kUnsupported,     // this model cannot do what the task wants; the message says what it lacks
};

// A value, to be copied and moved by any thread.
class [[nodiscard]] Status {
 public:
  static Status ok() { return Status(StatusCode::kOk, {}); }
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool is_ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_;
  std::string message_;
};

}  // namespace corosrv
