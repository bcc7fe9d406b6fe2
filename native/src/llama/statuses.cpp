#include "llama/statuses.h"

#include "llama/log.h"

namespace corosrv {

Status to_status(int32_t code) {
  if (code == 0) return Status::ok();
  if (code == kNoRoomCode) return Status(StatusCode::kNoRoom, "the KV cache has no room for this request");
  const std::string reason = take_last_error();
  return Status(StatusCode::kInternal, "the model could not compute this step (llama_decode: " + std::to_string(code) +
                                           (reason.empty() ? ")" : ", " + reason + ")"));
}

Status broken_promise(StatusCode code, const std::string& violation) {
  return Status(code, "COROSRV_DETERMINISTIC=1 cannot be kept for this model: " + violation +
                          ". It holds where libllama computes on the processor alone, for every weight format, in "
                          "models of attention, mixtures of experts, Mamba, RWKV, gated delta nets and short "
                          "convolutions. Start without COROSRV_DETERMINISTIC to serve this model");
}

Status no_shift(const std::string& reason) {
  return Status(StatusCode::kInvalid, "COROSRV_CONTEXT_SHIFT=1 is not possible with this model: " + reason +
                                          ". Start without COROSRV_CONTEXT_SHIFT to serve it");
}

}  // namespace corosrv
