// Words for what libllama did not do, or would not.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace corosrv {

constexpr int32_t kNoRoomCode = 1;  // of llama_decode()

// Of what llama_decode() returned.
Status to_status(int32_t code);

// `code`: at the start the setting is at fault, later the engine.
Status broken_promise(StatusCode code, const std::string& violation);

Status no_shift(const std::string& reason);

}  // namespace corosrv
