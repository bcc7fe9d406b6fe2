#include "sampling/likelihood.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sampling/vectorised.h"

namespace corosrv {

namespace {

constexpr size_t kLanes = 16;
constexpr float kNone = -std::numeric_limits<float>::infinity();

// e^x for x <= 0, to some 2e-7 of its value, in operations that every vector unit has: 2^n times a polynomial of what
// is left of x. Below -87, and for NaN, it is the least that a float holds in full, which no sum notices.
[[gnu::always_inline]] inline float exp_of_negative(float x) {
  constexpr float kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693145752f;
  constexpr float kLn2Low = 1.42860677e-6f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added and taken away, it rounds to an integer
  x = x > -87.0f ? x : -87.0f;
  const float n = (x * kLog2e + kRounder) - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float sum = 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = (sum * r + 1.0f) * r + 1.0f;
  return sum * __builtin_bit_cast(float, (static_cast<int32_t>(n) + 127) << 23);
}

// Sums of exp(logit - most), lane by lane.
COROSRV_VECTORISED
void add_exponentials(const float* logits, size_t size, float most, float* sums) {
  for (size_t i = 0; i + kLanes <= size; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += exp_of_negative(logits[i + lane] - most);
  }
  for (size_t i = size - size % kLanes; i < size; ++i) sums[0] += exp_of_negative(logits[i] - most);
}

float clamped(float logprob) { return logprob > kLeastLogprob ? std::min(logprob, 0.0f) : kLeastLogprob; }

}  // namespace

float log_sum_exp(const float* logits, size_t size) {
  const Token best = argmax(logits, size);
  if (best < 0) return kNone;
  const float most = logits[best];
  if (most == -kNone) return most;
  float sums[kLanes] = {};
  add_exponentials(logits, size, most, sums);
  return most + static_cast<float>(std::log(std::accumulate(sums, sums + kLanes, 0.0)));
}

TokenList likelihood_of(Token token, const float* logits, size_t n_top, const Vocabulary& vocabulary) {
  const auto size = static_cast<size_t>(vocabulary.size());
  const float total = log_sum_exp(logits, size);
  thread_local std::vector<Candidate> top;
  top.clear();
  if (n_top > 0) top_k(logits, size, std::min(n_top, size), top);
  TokenList told;
  told.add(token, clamped(logits[token] - total), added_text(vocabulary, token), top.size());
  for (const auto& [other, logit] : top) {
    told.add_other(other, clamped(logit - total), added_text(vocabulary, other));
  }
  return told;
}

TokenList likelihood_among(Token token, const std::vector<Candidate>& candidates, const std::vector<float>& weights,
                           size_t n_top, const Vocabulary& vocabulary) {
  const float total = std::log(std::accumulate(weights.begin(), weights.end(), 0.0f));
  const auto logprob = [&](size_t i) { return clamped(std::log(weights[i]) - total); };
  const auto place = std::find_if(candidates.begin(), candidates.end(),
                                  [token](const Candidate& candidate) { return candidate.token == token; });
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  order.resize(std::min(n_top, order.size()));
  TokenList told;
  told.add(token, logprob(static_cast<size_t>(place - candidates.begin())), added_text(vocabulary, token),
           order.size());
  for (const size_t i : order)
    told.add_other(candidates[i].token, logprob(i), added_text(vocabulary, candidates[i].token));
  return told;
}

}  // namespace corosrv
