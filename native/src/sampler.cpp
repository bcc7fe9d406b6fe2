#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace corosrv {

namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

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
      random_(sampling.seed) {}

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
  if (sampling_.temperature <= 0) return argmax(logits, static_cast<size_t>(vocabulary_.size()));
  thread_local std::vector<Candidate> candidates;  // one for all sequences: it may take kilobytes
  select(logits, candidates);
  if (candidates.empty() || !std::isfinite(candidates[0].logit)) return -1;
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
  const auto size = static_cast<size_t>(vocabulary_.size());
  const size_t k = sampling_.top_k > 0 ? std::min(static_cast<size_t>(sampling_.top_k), size) : size;
  top_k(logits, size, k, candidates);
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
