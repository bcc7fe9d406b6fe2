#include "grammar/grammar.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

namespace corosrv {

namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr double kWorkPerMs = 200'000;

}  // namespace

Grammar::Grammar(std::shared_ptr<const Program> program, const Vocabulary& vocabulary,
                 std::shared_ptr<const TokenOrder> order, double token_ms)
    : recognizer_(std::move(program)), vocabulary_(&vocabulary), order_(std::move(order)) {
  recognizer_.limit_work(static_cast<uint64_t>(token_ms * kWorkPerMs));
}

void Grammar::keep_allowed(std::vector<Candidate>& candidates) {
  const auto is_refused = [this](const Candidate& candidate) { return !allows(candidate.token); };
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_refused), candidates.end());
}

bool Grammar::allows(Token token) {
  if (vocabulary_->is_end_of_generation(token)) return is_complete();
  const std::string_view text = vocabulary_->text(token);
  const bool is_allowed = !text.empty() && push(text);
  recognizer_.pop_to(0);
  return is_allowed;
}

bool Grammar::push(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [this](char byte) { return recognizer_.push(static_cast<uint8_t>(byte)); });
}

void Grammar::ban_refused(float* logits) {
  thread_local std::vector<bool> is_allowed;
  is_allowed.assign(static_cast<size_t>(vocabulary_->size()), false);
  for (const Token token : vocabulary_->end_tokens()) is_allowed[static_cast<size_t>(token)] = is_complete();
  const std::vector<TokenOrder::Node>& nodes = order_->nodes();
  for (size_t i = 0; i + 1 < nodes.size();) {
    recognizer_.pop_to(nodes[i].depth);
    if (!recognizer_.push(nodes[i].byte)) {
      i = nodes[i].end;
      continue;
    }
    const uint32_t end = nodes[i + 1].first_token;
    for (uint32_t t = nodes[i].first_token; t < end; ++t) is_allowed[static_cast<size_t>(order_->tokens()[t])] = true;
    ++i;
  }
  recognizer_.pop_to(0);
  for (size_t token = 0; token < is_allowed.size(); ++token) {
    if (!is_allowed[token]) logits[token] = kBanned;
  }
}

bool Grammar::accept(Token token) {
  if (vocabulary_->is_end_of_generation(token)) return is_complete();
  const std::string_view text = vocabulary_->text(token);
  return !text.empty() && accept_text(text);
}

bool Grammar::accept_text(std::string_view text) {
  recognizer_.reset_work();  // looking for the token must not leave too little to follow it
  if (!push(text)) return false;
  recognizer_.commit();
  recognizer_.reset_work();
  return true;
}

}  // namespace corosrv
