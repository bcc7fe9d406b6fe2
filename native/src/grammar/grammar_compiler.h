// GBNF to grammars of one model, in bounded memory.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/status.h"
#include "grammar/gbnf.h"
#include "grammar/grammar.h"
#include "grammar/token_order.h"
#include "model/backend.h"

namespace corosrv {

// Any thread. Works on the thread that submits: the decode thread has others to serve, and the limits of compile_gbnf()
// keep it to milliseconds.
class GrammarCompiler {
 public:
  // `most_bytes`: of all compiled grammars that are alive; a request of some bytes can ask for half a megabyte.
  GrammarCompiler(const GrammarLimits& limits, size_t most_bytes) : limits_(limits), most_bytes_(most_bytes) {}

  // Refused as compile_gbnf() does, or with StatusCode::kQueueFull where the grammars of other jobs take all memory.
  // `vocabulary` is always the same, and outlives the compiler and the grammars.
  Status compile(std::string_view gbnf, const Vocabulary& vocabulary, std::shared_ptr<const Grammar>& grammar);

 private:
  std::shared_ptr<const Program> counted(Program program);

  const GrammarLimits limits_;
  const size_t most_bytes_;
  // Shared with the programs, which may outlive the engine.
  const std::shared_ptr<std::atomic<size_t>> bytes_ = std::make_shared<std::atomic<size_t>>(0);
  std::once_flag is_ordered_;
  std::shared_ptr<const TokenOrder> token_order_;  // made with the first grammar
};

}  // namespace corosrv
