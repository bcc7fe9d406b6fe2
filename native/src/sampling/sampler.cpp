#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
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
      needs_all_(needs_all()),
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

Token Sampler::draw(RowLogits row, TokenList* told) {
  thread_local Workspace now;
  now.row = row;
  now.logits = nullptr;
  now.banned.clear();
  if (needs_all_ || !pick(now)) see_all(now);
  Token token = ending();
  if (token >= 0) {
    now.candidates.assign(1, {token, 0.0f});
    now.weights.assign(1, 1.0f);
  } else {
    token = choose(now);
  }
  while (token >= 0 && !follow(token)) {
    if (lack_ == Lack::kTime) return -1;
    ban(token, now);
    token = choose(now);
  }
  if (token >= 0) thoughts_.accept(added_text(vocabulary_, token));
  if (token >= 0 && tells() && told != nullptr) *told = likelihood(token, now);
  return token;
}

bool Sampler::needs_all() const {
  const bool tells_of_all = tells() && !sampling_.post_sampling_probs;
  return tells_of_all || order_.n_sigma > 0 || order_.may_raise;
}

// Returns whether the draw may go by the picked logits.
bool Sampler::pick(Workspace& now) {
  const PickedLogits& picked = now.row.picked;
  if (picked.size < n_candidates()) return false;
  now.picked.clear();
  now.bound = -kBanned;
  for (size_t i = 0; i < picked.size; ++i) {
    if (std::isnan(picked.logits[i])) return false;  // it compares with nothing: whatever was picked may be anything
    now.picked.push_back({picked.tokens[i], picked.logits[i]});
    now.bound = std::min(now.bound, picked.logits[i]);
  }
  if (sampling_.biases.empty() && !sampling_.ignore_eos && order_.on_row.empty()) return true;
  ListedLogits listed(now.picked);
  return change(listed);
}

// From now on the draw goes by all logits.
void Sampler::see_all(Workspace& now) {
  if (now.logits != nullptr) return;
  now.logits = now.row.fetch();
  if (tells() && !sampling_.post_sampling_probs) now.own.assign(now.logits, now.logits + vocabulary_.size());
  LogitRow row(now.logits);
  change(row);
  for (const Token token : now.banned) now.logits[token] = kBanned;
}

// Changes logits by what the request says of tokens. Returns false where one that is not there may become larger.
bool Sampler::change(Logits& logits) {
  for (const auto& [token, bias] : sampling_.biases) {
    if (float* logit = logits.find(token)) {
      *logit += bias;
    } else if (!(bias <= 0)) {
      return false;
    }
  }
  if (sampling_.ignore_eos) {
    for (const Token token : vocabulary_.end_tokens()) {
      if (float* logit = logits.find(token)) *logit = kBanned;
    }
  }
  for (const auto& stage : order_.on_row) stage->change(logits);
  return true;
}

// Bans a token that was chosen.
void Sampler::ban(Token token, Workspace& now) {
  now.banned.push_back(token);
  if (now.logits != nullptr) {
    now.logits[token] = kBanned;
    return;
  }
  for (Candidate& candidate : now.picked) {
    if (candidate.token == token) candidate.logit = kBanned;
  }
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
Token Sampler::choose(Workspace& now) {
  if (is_argmax()) {
    take_best(1, now);
    if (now.candidates.empty()) return lacking(lack_of_choice(now));
    now.weights.assign(1, 1.0f);
    return now.candidates[0].token;
  }
  select(now);
  if (now.candidates.empty() || !std::isfinite(now.candidates[0].logit)) return lacking(lack_of_choice(now));
  if (grammar_) select_allowed(now);
  if (now.candidates.empty()) return -1;
  for (const auto& stage : order_.on_candidates) stage->apply(now.candidates, random_);
  return now.candidates[chooser_->choose(now.candidates, now.weights, random_)].token;
}

Token Sampler::lacking(Lack lack) {
  lack_ = lack;
  return -1;
}

Sampler::Lack Sampler::lack_of_choice(Workspace& now) {
  see_all(now);
  const auto is_number = [](float logit) { return logit == kBanned || std::isfinite(logit); };
  return std::all_of(now.logits, now.logits + vocabulary_.size(), is_number) ? Lack::kChoice : Lack::kNumber;
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

// The k best of all logits become the candidates.
void Sampler::take_best(size_t k, Workspace& now) {
  if (now.logits == nullptr) {
    now.candidates.clear();
    std::copy_if(now.picked.begin(), now.picked.end(), std::back_inserter(now.candidates),
                 [&now](const Candidate& candidate) { return candidate.logit > now.bound; });
    const bool are_all_known = now.bound == kBanned;  // that are not banned
    if (now.candidates.size() >= k || are_all_known) return keep_best(k, now.candidates);
    see_all(now);
  }
  const auto size = static_cast<size_t>(vocabulary_.size());
  if (k > 1) return top_k(now.logits, size, k, now.candidates);
  now.candidates.clear();
  const Token best = argmax(now.logits, size);
  if (best >= 0) now.candidates.push_back({best, now.logits[best]});
}

void Sampler::select(Workspace& now) {
  take_best(n_candidates(), now);
  if (order_.n_sigma == 0) return;
  drop_below(least_by_sigma(now.logits, static_cast<size_t>(vocabulary_.size()), order_.n_sigma), now.candidates);
}

// Leaves of the candidates those that the grammar allows, or puts the best of those that it allows in their place.
void Sampler::select_allowed(Workspace& now) {
  const bool has_all = n_candidates() == static_cast<size_t>(vocabulary_.size());
  if (!has_all) grammar_->keep_allowed(now.candidates);
  if (has_all || now.candidates.empty()) select_best_allowed(now);
  lack_ = grammar_->is_complete() ? Lack::kContinuation : Lack::kAllowed;
  if (!grammar_->is_too_slow()) return;
  lack_ = Lack::kTime;
  now.candidates.clear();  // not all were looked at: the best may be missing
}

// The k best of what the grammar allows, or the best one where greed asks for no more. Where it allows much, they are
// soon found from the top; where it allows little, the whole vocabulary is soon seen through, because most tokens are
// refused for their first byte.
void Sampler::select_best_allowed(Workspace& now) {
  const auto size = static_cast<size_t>(vocabulary_.size());
  const size_t k = n_candidates();
  if (k <= size / kWiden && order_.n_sigma == 0) {
    take_best(k * kWiden, now);
    grammar_->keep_allowed(now.candidates);
    if (now.candidates.size() >= (order_.is_best_of_row ? 1 : k)) {
      now.candidates.resize(std::min(k, now.candidates.size()));
      return;
    }
  }
  see_all(now);
  grammar_->ban_refused(now.logits);
  select(now);
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
