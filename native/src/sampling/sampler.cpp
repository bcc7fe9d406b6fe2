#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "sampling/cutoffs.h"
#include "sampling/likelihood.h"

namespace corosrv {

namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr size_t kWiden = 4;              // times as many candidates, when a grammar refuses all of them
constexpr size_t kGreedyCandidates = 16;  // that a grammar looks at before it looks at all

constexpr std::string_view kLineEnd = "\n";

std::vector<std::string> behind_line_ends(std::vector<std::string> texts) {
  for (std::string& text : texts) text.insert(0, kLineEnd);
  return texts;
}

}  // namespace

Sampler::Sampler(const Sampling& sampling, const Vocabulary& vocabulary, int32_t context)
    : sampling_(sampling),
      vocabulary_(vocabulary),
      random_(sampling.seed),
      order_(sampling, context),
      chooser_(make_chooser(sampling, order_.is_greedy, vocabulary.size())),
      trigger_(sampling.grammar_triggers),
      line_trigger_(behind_line_ends(sampling.grammar_triggers)),
      thoughts_(sampling.thoughts) {
  if (sampling.grammar && !trigger_.is_set()) grammar_ = std::make_unique<Grammar>(*sampling.grammar);
  line_trigger_.pass(kLineEnd);  // thoughts begin with a line
}

void Sampler::accept(Token token) {
  for (const auto& stage : order_.on_row) stage->accept(token);
  for (const auto& stage : order_.on_candidates) stage->accept(token);
  chooser_->accept();
}

bool Sampler::replay(Token token) {
  ending();  // may give up, as before the draw
  if (!follow(token)) return false;
  thoughts_.accept(added_text(vocabulary_, token));
  accept(token);
  return true;
}

SamplerState Sampler::state() const {
  const uint64_t random = random_.state();
  const Chooser::State chooser = chooser_->state();
  SamplerState state;
  static_assert(sizeof random + sizeof chooser == sizeof state);
  std::memcpy(state.data(), &random, sizeof random);
  std::memcpy(state.data() + sizeof random, &chooser, sizeof chooser);
  return state;
}

void Sampler::restore(const SamplerState& state) {
  uint64_t random;
  Chooser::State chooser;
  std::memcpy(&random, state.data(), sizeof random);
  std::memcpy(&chooser, state.data() + sizeof random, sizeof chooser);
  random_.restore(random);
  chooser_->restore(chooser);
}

Token Sampler::draw(float* logits, TokenList* told) {
  thread_local Workspace now;
  if (tells() && !sampling_.post_sampling_probs) now.own.assign(logits, logits + vocabulary_.size());
  apply_biases(logits);
  LogitRow row(logits);
  for (const auto& stage : order_.on_row) stage->change(row);
  Token token = ending();
  if (token >= 0) {
    now.candidates.assign(1, {token, logits[token]});
    now.weights.assign(1, 1.0f);
  } else {
    token = choose(logits, now);
  }
  while (token >= 0 && !follow(token)) {
    if (lack_ == Lack::kTime) return -1;
    logits[token] = kBanned;
    token = choose(logits, now);
  }
  if (token >= 0) thoughts_.accept(added_text(vocabulary_, token));
  if (token >= 0 && tells() && told != nullptr) *told = likelihood(token, now);
  return token;
}

void Sampler::apply_biases(float* logits) const {
  for (const auto& [token, bias] : sampling_.biases) logits[token] += bias;
  if (!sampling_.ignore_eos) return;
  for (const Token token : vocabulary_.end_tokens()) logits[token] = kBanned;
}

// The next token of the end of thoughts that have spent their budget; -1 where any may come.
Token Sampler::ending() {
  const Token token = thoughts_.wanted();
  if (token < 0 || !grammar_) return token;
  Candidates candidates{{token, 0.0f}};
  grammar_->keep_allowed(candidates);
  if (!candidates.empty()) return token;
  thoughts_.give_up();
  return -1;
}

// One token, or -1 and the reason; changes only those logits that the grammar refuses.
Token Sampler::choose(float* logits, Workspace& now) {
  if (is_argmax()) {
    const Token best = argmax(logits, static_cast<size_t>(vocabulary_.size()));
    if (best < 0) return lacking(lack_of_choice(logits));
    now.candidates.assign(1, {best, logits[best]});
    now.weights.assign(1, 1.0f);
    return best;
  }
  select(logits, now.candidates);
  if (now.candidates.empty() || !std::isfinite(now.candidates[0].logit)) return lacking(lack_of_choice(logits));
  if (grammar_) select_allowed(logits, now.candidates);
  if (now.candidates.empty()) return -1;
  for (const auto& stage : order_.on_candidates) stage->apply(now.candidates, random_);
  return now.candidates[chooser_->choose(now.candidates, now.weights, random_)].token;
}

Token Sampler::lacking(Lack lack) {
  lack_ = lack;
  return -1;
}

Sampler::Lack Sampler::lack_of_choice(const float* logits) const {
  const auto is_number = [](float logit) { return logit == kBanned || std::isfinite(logit); };
  return std::all_of(logits, logits + vocabulary_.size(), is_number) ? Lack::kChoice : Lack::kNumber;
}

// The grammar, or the watch for its beginning, goes on with the token; false where it may not be drawn, or following
// it takes too long.
bool Sampler::follow(Token token) {
  if (grammar_) {
    if (grammar_->accept(token)) return true;
    lack_ = Lack::kTime;
    return false;
  }
  return !trigger_.is_set() || begin_grammar(token);
}

bool Sampler::begin_grammar(Token token) {
  const std::string_view text = added_text(vocabulary_, token);
  const std::string_view thoughts = text.substr(0, thoughts_.n_thoughts(text));
  const std::string_view rest = text.substr(thoughts.size());
  std::string begun;
  if (thoughts_.is_begun_by_prompt() && line_trigger_.would_complete(thoughts, begun)) {
    return begin_grammar(begun.substr(kLineEnd.size()).append(rest));
  }
  if (trigger_.would_complete(rest, begun)) return begin_grammar(begun);
  line_trigger_.pass(thoughts);
  trigger_.pass(rest);
  return true;
}

// The same for a text from the first byte of its trigger on.
bool Sampler::begin_grammar(const std::string& begun) {
  auto grammar = std::make_unique<Grammar>(*sampling_.grammar);
  if (grammar->accept_text(begun)) {
    grammar_ = std::move(grammar);
    return true;
  }
  lack_ = grammar->is_too_slow() ? Lack::kTime : Lack::kAllowed;
  return false;
}

void Sampler::select(const float* logits, Candidates& candidates) const {
  const auto size = static_cast<size_t>(vocabulary_.size());
  top_k(logits, size, n_candidates(), candidates);
  if (order_.n_sigma > 0) drop_below(least_by_sigma(logits, size, order_.n_sigma), candidates);
}

// Leaves of the candidates those that the grammar allows, or puts the best of those that it allows in their place.
void Sampler::select_allowed(float* logits, Candidates& candidates) {
  const bool has_all = n_candidates() == static_cast<size_t>(vocabulary_.size());
  if (!has_all) grammar_->keep_allowed(candidates);
  if (has_all || candidates.empty()) select_best_allowed(logits, candidates);
  lack_ = grammar_->is_complete() ? Lack::kContinuation : Lack::kAllowed;
  if (!grammar_->is_too_slow()) return;
  lack_ = Lack::kTime;
  candidates.clear();  // not all were looked at: the best may be missing
}

// The k best of what the grammar allows, or the best one where greed asks for no more. Where it allows much, they are
// soon found from the top; where it allows little, the whole vocabulary is soon seen through, because most tokens are
// refused for their first byte.
void Sampler::select_best_allowed(float* logits, Candidates& candidates) {
  const auto size = static_cast<size_t>(vocabulary_.size());
  const size_t k = n_candidates();
  if (k <= size / kWiden && order_.n_sigma == 0) {
    top_k(logits, size, k * kWiden, candidates);
    grammar_->keep_allowed(candidates);
    if (candidates.size() >= (order_.is_best_of_row ? 1 : k)) {
      candidates.resize(std::min(k, candidates.size()));
      return;
    }
  }
  grammar_->ban_refused(logits);
  select(logits, candidates);
}

size_t Sampler::n_candidates() const {
  const auto size = static_cast<size_t>(vocabulary_.size());
  if (order_.is_best_of_row) return std::min(kGreedyCandidates, size);
  return order_.k > 0 ? std::min(order_.k, size) : size;
}

TokenList Sampler::likelihood(Token token, const Workspace& now) const {
  const auto n_top = static_cast<size_t>(sampling_.n_probs);
  if (sampling_.post_sampling_probs) return likelihood_among(token, now.candidates, now.weights, n_top, vocabulary_);
  return likelihood_of(token, now.own.data(), n_top, vocabulary_);
}

}  // namespace corosrv
