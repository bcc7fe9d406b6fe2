#include "grammar/grammar_compiler.h"

#include <string>
#include <utility>

namespace corosrv {

Status GrammarCompiler::compile(std::string_view gbnf, const Vocabulary& vocabulary,
                                std::shared_ptr<const Grammar>& grammar) {
  Program program;
  const Status status = compile_gbnf(gbnf, program, limits_);
  if (!status.is_ok()) return status;
  std::shared_ptr<const Program> kept = counted(std::move(program));
  if (!kept) {
    return Status(StatusCode::kQueueFull, "the grammars of the jobs that run and wait take all of the " +
                                              std::to_string(most_bytes_) +
                                              " bytes that grammars may; try again later");
  }
  std::call_once(is_ordered_, [&] { token_order_ = std::make_shared<const TokenOrder>(vocabulary); });
  grammar = std::make_shared<const Grammar>(std::move(kept), vocabulary, token_order_, limits_.token_ms);
  return Status::ok();
}

// Null when there is no room. Counts are all that is shared, so no order between threads is asked for.
std::shared_ptr<const Program> GrammarCompiler::counted(Program program) {
  const size_t size = program.bytes();
  if (bytes_->fetch_add(size, std::memory_order_relaxed) + size > most_bytes_) {
    bytes_->fetch_sub(size, std::memory_order_relaxed);
    return nullptr;
  }
  return {new Program(std::move(program)), [size, bytes = bytes_](const Program* counted) {
            bytes->fetch_sub(size, std::memory_order_relaxed);
            delete counted;
          }};
}

}  // namespace corosrv
