#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace corosrv {

namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr size_t kWiden = 4;              // times as many candidates, when a grammar refuses all of them
constexpr size_t kGreedyCandidates = 16;  // that a grammar looks at before it looks at all

size_t window_size(const Sampling& sampling, int32_t context) {
  const int32_t wanted = sampling.repeat_last_n < 0 ? context : sampling.repeat_last_n;
  return static_cast<size_t>(std::min(wanted, context));
}

// exp(logit - the largest one) of each candidate: probabilities up to a common factor.
std::vector<float>& weights_of(const std::vector<Candidate>& candidates, float temperature) {
  thread_local std::vector<float> weights;
  weights.resize(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    weights[i] = std::exp((candidates[i].logit - candidates[0].logit) / temperature);
  }
  return weights;
}

}  // namespace

float Random::next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-24f;
}

Sampler::Sampler(const Sampling& sampling, const Vocabulary& vocabulary, int32_t context)
    : sampling_(sampling),
      vocabulary_(vocabulary),
      window_size_(window_size(sampling, context)),
      random_(sampling.seed),
      grammar_(sampling.grammar ? std::make_unique<Grammar>(*sampling.grammar) : nullptr) {}

bool Sampler::has_penalties() const {
  return window_size_ > 0 && (sampling_.repeat_penalty != 1.0f || sampling_.presence_penalty != 0.0f ||
                              sampling_.frequency_penalty != 0.0f);
}

void Sampler::accept(Token token) {
  if (!has_penalties()) return;
  ++counts_[token];
  if (window_.size() < window_size_) {
    window_.push_back(token);
    return;
  }
  const auto oldest = counts_.find(window_[oldest_]);
  if (--oldest->second == 0) counts_.erase(oldest);
  window_[oldest_] = token;
  oldest_ = (oldest_ + 1) % window_size_;
}

Token Sampler::draw(float* logits) {
  apply_biases(logits);
  if (has_penalties()) apply_penalties(logits);
  const bool is_greedy = sampling_.temperature <= 0;
  if (is_greedy && !grammar_) return argmax(logits, static_cast<size_t>(vocabulary_.size()));
  thread_local std::vector<Candidate> candidates;  // one for all sequences: it may take kilobytes
  select(logits, candidates);
  lack_ = Lack::kChoice;
  if (candidates.empty() || !std::isfinite(candidates[0].logit)) return -1;
  if (grammar_) select_allowed(logits, candidates);
  if (candidates.empty()) return -1;
  const Token token = is_greedy ? candidates[0].token : choose(candidates);
  if (!grammar_ || grammar_->accept(token)) return token;
  lack_ = Lack::kTime;
  return -1;
}

// Leaves of the candidates those that the grammar allows, or puts the best of those that it allows in their place.
void Sampler::select_allowed(float* logits, std::vector<Candidate>& candidates) {
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
void Sampler::select_best_allowed(float* logits, std::vector<Candidate>& candidates) {
  const auto size = static_cast<size_t>(vocabulary_.size());
  const size_t k = n_candidates();
  if (k <= size / kWiden) {
    top_k(logits, size, k * kWiden, candidates);
    grammar_->keep_allowed(candidates);
    if (candidates.size() >= (sampling_.temperature <= 0 ? 1 : k)) {
      candidates.resize(std::min(k, candidates.size()));
      return;
    }
  }
  grammar_->ban_refused(logits);
  select(logits, candidates);
}

Token Sampler::choose(std::vector<Candidate>& candidates) {
  if (sampling_.typical_p < 1.0f) keep_typical(candidates);
  if (sampling_.top_p < 1.0f) keep_top_p(candidates);
  if (sampling_.min_p > 0.0f) keep_min_p(candidates);
  return pick(candidates);
}

void Sampler::apply_biases(float* logits) const {
  for (const auto& [token, bias] : sampling_.biases) logits[token] += bias;
  if (!sampling_.ignore_eos) return;
  for (const Token token : vocabulary_.end_tokens()) logits[token] = kBanned;
}

void Sampler::apply_penalties(float* logits) const {
  for (const auto& [token, count] : counts_) {
    float& logit = logits[token];
    logit = logit <= 0 ? logit * sampling_.repeat_penalty : logit / sampling_.repeat_penalty;
    logit -= static_cast<float>(count) * sampling_.frequency_penalty + sampling_.presence_penalty;
  }
}

void Sampler::select(const float* logits, std::vector<Candidate>& candidates) const {
  top_k(logits, static_cast<size_t>(vocabulary_.size()), n_candidates(), candidates);
}

size_t Sampler::n_candidates() const {
  const auto size = static_cast<size_t>(vocabulary_.size());
  if (sampling_.temperature <= 0) return std::min(kGreedyCandidates, size);
  return sampling_.top_k > 0 ? std::min(static_cast<size_t>(sampling_.top_k), size) : size;
}

// Locally typical sampling (Meister et al. 2022): the tokens whose surprise is nearest to the expected one, until
// their probabilities add up to typical_p.
void Sampler::keep_typical(std::vector<Candidate>& candidates) const {
  const std::vector<float>& weights = weights_of(candidates, 1.0f);
  const float total = std::accumulate(weights.begin(), weights.end(), 0.0f);
  float entropy = 0;
  for (const float weight : weights) {
    if (weight > 0) entropy -= weight / total * std::log(weight / total);
  }
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto distance = [&](size_t i) { return std::abs(-std::log(weights[i] / total) - entropy); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return distance(a) < distance(b); });

  float sum = 0;
  size_t kept = 0;
  while (kept < order.size() && sum < sampling_.typical_p * total) sum += weights[order[kept++]];
  order.resize(std::max<size_t>(kept, 1));
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) candidates[i] = candidates[order[i]];
  candidates.resize(order.size());
}

void Sampler::keep_top_p(std::vector<Candidate>& candidates) const {
  const std::vector<float>& weights = weights_of(candidates, 1.0f);
  const float wanted = sampling_.top_p * std::accumulate(weights.begin(), weights.end(), 0.0f);
  float sum = 0;
  size_t kept = 0;
  while (kept < weights.size() && sum < wanted) sum += weights[kept++];
  candidates.resize(std::max<size_t>(kept, 1));
}

void Sampler::keep_min_p(std::vector<Candidate>& candidates) const {
  const float least = candidates[0].logit + std::log(sampling_.min_p);
  const auto below = std::find_if(candidates.begin() + 1, candidates.end(),
                                  [least](const Candidate& candidate) { return candidate.logit < least; });
  candidates.erase(below, candidates.end());
}

Token Sampler::pick(const std::vector<Candidate>& candidates) {
  const std::vector<float>& weights = weights_of(candidates, sampling_.temperature);
  const float total = std::accumulate(weights.begin(), weights.end(), 0.0f);
  float left = random_.next() * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return candidates[i].token;
  }
  return candidates.back().token;
}

}  // namespace corosrv
