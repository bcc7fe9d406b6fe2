// Values of the core as the C API has them. Any thread.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "corosrv.h"
#include "handover/slot_request.h"
#include "loop/engine.h"
#include "loop/loop_stats.h"
#include "loop/slot_status.h"
#include "model/backend.h"
#include "model/types.h"

namespace corosrv {

corosrv_code to_c(StatusCode code);
corosrv_state to_c(EngineState state);
corosrv_stats to_c(const LoopStats& from);
corosrv_slot to_c(const SlotStatus& from);
// The results of these two point into `from`.
corosrv_model_info to_c(const ModelInfo& from, int32_t n_vocab);
corosrv_slot_content to_c(const SlotContent& from);

// What a take gives, as corosrv_chunks. They point into the chunks that they were made of, and into this object.
class ChunkArray {
 public:
  // Until the next call `from` stays where it is.
  void assign(const std::vector<Chunk>& from);
  corosrv_batch batch() const { return {chunks_.data(), chunks_.size()}; }

 private:
  corosrv_chunk convert(const Chunk& from);
  corosrv_token_list convert(const std::unique_ptr<TokenList>& from);

  std::vector<corosrv_chunk> chunks_;
  std::vector<std::vector<corosrv_likelihood>> likelihoods_;  // of each list that is not empty
};

}  // namespace corosrv
