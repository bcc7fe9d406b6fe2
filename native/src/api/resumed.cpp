#include "api/resumed.h"

#include <cstdint>
#include <string>

#include "api/check.h"
#include "sampling/likelihood.h"
#include "sampling/sampler.h"
#include "text/answer_text.h"

namespace corosrv {

namespace {

Status check_text(const Task& task, const std::string& bytes) {
  AnswerText answer(task.stops);
  const std::string text = answer.push(bytes, {});
  if (answer.has_stopped()) return invalid("what was generated has reached the stop string that ends it");
  const size_t n_sent = task.earlier.n_sent;
  if (n_sent > text.size()) {
    return invalid("of what was generated, " + std::to_string(text.size()) + " bytes of text are certain, and " +
                   std::to_string(n_sent) + " were sent");
  }
  const bool is_inside = n_sent < text.size() && (static_cast<uint8_t>(text[n_sent]) & 0xC0) == 0x80;
  return is_inside ? invalid("the text that was sent ends inside a character") : Status::ok();
}

Status check_resumed(const Task& task, const Vocabulary& vocabulary, int32_t context) {
  Sampler sampler(task.sampling, vocabulary, context);
  std::string bytes;
  for (const Token token : task.earlier.tokens) {
    if (!sampler.replay(token)) return invalid("what was generated does not follow the grammar");
    bytes += added_text(vocabulary, token);
  }
  return check_text(task, bytes);
}

}  // namespace

Status check_resumed(const std::vector<Task>& tasks, const Backend& backend) {
  for (const Task& task : tasks) {
    if (task.earlier.tokens.empty()) continue;
    const Status status = check_resumed(task, backend.vocabulary(), backend.info().context);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

}  // namespace corosrv
