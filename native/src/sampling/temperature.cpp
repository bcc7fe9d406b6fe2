#include "sampling/temperature.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace corosrv {

void Temperature::apply(Candidates& candidates, Random&) {
  if (candidates.size() < 2) return;
  const float temperature = range_ > 0 ? dynamic(candidates) : temperature_;
  if (temperature <= 0) return candidates.resize(1);
  // Against the best, which makes no difference to the distribution and none of them too large for a float.
  const float best = candidates[0].logit;
  for (Candidate& candidate : candidates) candidate.logit = (candidate.logit - best) / temperature;
}

float Temperature::dynamic(const Candidates& candidates) const {
  thread_local std::vector<float> weights;
  weigh(candidates, weights);
  const float total = std::accumulate(weights.begin(), weights.end(), 0.0f);
  float entropy = 0;
  for (const float weight : weights) {
    if (weight > 0) entropy -= weight / total * std::log(weight / total);
  }
  const float share = std::max(entropy, 0.0f) / std::log(static_cast<float>(candidates.size()));
  const float least = std::max(0.0f, temperature_ - range_);
  const float most = temperature_ + range_;
  return least + (most - least) * std::pow(share, exponent_);
}

}  // namespace corosrv
