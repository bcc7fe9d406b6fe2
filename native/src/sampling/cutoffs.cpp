#include "sampling/cutoffs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace corosrv {

namespace {

// Weights of the candidates, and their sum.
float weigh_all(const Candidates& candidates, std::vector<float>*& weights) {
  thread_local std::vector<float> kept;  // one for all sequences: it may take kilobytes
  weigh(candidates, kept);
  weights = &kept;
  return std::accumulate(kept.begin(), kept.end(), 0.0f);
}

// Mean and deviation need no more than these, whoever goes through the logits.
class Moments {
 public:
  void add(float logit) {
    if (!(logit > -std::numeric_limits<float>::infinity())) return;
    most_ = std::max(most_, logit);
    ++n_;
    const double away = logit - mean_;
    mean_ += away / static_cast<double>(n_);
    squares_ += away * (logit - mean_);
  }
  float least(float n_sigma) const {
    if (n_ == 0) return most_;
    return most_ - n_sigma * static_cast<float>(std::sqrt(squares_ / static_cast<double>(n_)));
  }

 private:
  size_t n_ = 0;
  float most_ = -std::numeric_limits<float>::infinity();
  double mean_ = 0;
  double squares_ = 0;  // of the distances from the mean (Welford 1962)
};

}  // namespace

void TopK::apply(Candidates& candidates, Random&) { candidates.resize(std::min(k_, candidates.size())); }

void TopP::apply(Candidates& candidates, Random&) {
  std::vector<float>* weights;
  const float wanted = p_ * weigh_all(candidates, weights);
  float sum = 0;
  size_t kept = 0;
  while (kept < weights->size() && (sum < wanted || kept < min_keep_)) sum += (*weights)[kept++];
  candidates.resize(std::max<size_t>(kept, 1));
}

void MinP::apply(Candidates& candidates, Random&) {
  const float least = candidates[0].logit + std::log(p_);
  const size_t kept = std::clamp<size_t>(min_keep_, 1, candidates.size());
  const auto below = std::find_if(candidates.begin() + static_cast<std::ptrdiff_t>(kept), candidates.end(),
                                  [least](const Candidate& candidate) { return candidate.logit < least; });
  candidates.erase(below, candidates.end());
}

void TypicalP::apply(Candidates& candidates, Random&) {
  std::vector<float>* weighed;
  const float total = weigh_all(candidates, weighed);
  const std::vector<float>& weights = *weighed;
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
  while (kept < order.size() && (sum < p_ * total || kept < min_keep_)) sum += weights[order[kept++]];
  order.resize(std::max<size_t>(kept, 1));
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) candidates[i] = candidates[order[i]];
  candidates.resize(order.size());
}

void TopNSigma::apply(Candidates& candidates, Random&) {
  Moments moments;
  for (const Candidate& candidate : candidates) moments.add(candidate.logit);
  drop_below(moments.least(n_), candidates);
}

float least_by_sigma(const float* logits, size_t size, float n) {
  Moments moments;
  for (size_t i = 0; i < size; ++i) moments.add(logits[i]);
  return moments.least(n);
}

void drop_below(float least, Candidates& candidates) {
  const auto below = std::find_if(candidates.begin(), candidates.end(),
                                  [least](const Candidate& candidate) { return candidate.logit < least; });
  candidates.erase(below, candidates.end());
}

}  // namespace corosrv
