#include "sampling/adaptive_p.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace corosrv {

namespace {

// The shape of the preference: a peak, quadratic near the target and linear far from it.
constexpr float kWidth = 0.3f;
constexpr float kPeak = 5.0f;
constexpr float kSharpness = 10.0f;
constexpr float kMostDecay = 0.99f;

}  // namespace

AdaptiveP::AdaptiveP(float target, float decay)
    : target_(std::clamp(target, 0.0f, 1.0f)),
      decay_(std::clamp(decay, 0.0f, kMostDecay)),
      sum_(target_ / (1 - decay_)),
      weight_(1 / (1 - decay_)) {}

float AdaptiveP::adapted_target() const { return std::clamp(2 * target_ - sum_ / weight_, 0.0f, 1.0f); }

size_t AdaptiveP::choose(Candidates& candidates, std::vector<float>& weights, Random& random) {
  weigh(candidates, weights);
  const float total = std::accumulate(weights.begin(), weights.end(), 0.0f);
  const float target = adapted_target();
  thread_local std::vector<float> probabilities;
  probabilities.clear();
  float most = -kSharpness / kWidth;  // below any
  for (size_t i = 0; i < candidates.size(); ++i) {
    probabilities.push_back(weights[i] / total);
    const float away = std::abs(probabilities[i] - target) / kWidth;
    weights[i] = kPeak - kSharpness * away * away / (1 + away);
    most = std::max(most, weights[i]);
  }
  for (float& weight : weights) weight = std::exp(weight - most);
  const size_t place = draw_by_weight(weights, random);
  drawn_ = probabilities[place];
  return place;
}

void AdaptiveP::accept() {
  if (drawn_ < 0) return;
  sum_ = drawn_ + decay_ * sum_;
  weight_ = 1 + decay_ * weight_;
  drawn_ = -1;
}

}  // namespace corosrv
