#include "sampling/mirostat.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace corosrv {

namespace {

constexpr size_t kEstimateFrom = 100;  // candidates

}  // namespace

void Surprise::accept() { allowed_ += std::exchange(change_, 0.0f); }

size_t Surprise::draw(const std::vector<float>& weights, Random& random) {
  const size_t place = draw_by_weight(weights, random);
  const float total = std::accumulate(weights.begin(), weights.end(), 0.0f);
  const float seen = -std::log2(weights[place] / total);
  // What has no probability is drawn by rounding alone, and teaches nothing.
  change_ = std::isfinite(seen) ? eta_ * (tau_ - seen) : 0.0f;
  return place;
}

size_t Mirostat::choose(Candidates& candidates, std::vector<float>& weights, Random& random) {
  candidates.resize(std::min(n_wanted(candidates), candidates.size()));
  weigh(candidates, weights);
  return draw(weights, random);
}

// Zipf's exponent by least squares, then the k of the paper's equation 8.
size_t Mirostat::n_wanted(const Candidates& candidates) const {
  float products = 0;
  float squares = 0;
  for (size_t i = 0; i + 1 < std::min(kEstimateFrom, candidates.size()); ++i) {
    const float step = std::log(static_cast<float>(i + 2) / static_cast<float>(i + 1));
    products += step * (candidates[i].logit - candidates[i + 1].logit);
    squares += step * step;
  }
  const float exponent = products / squares;
  const float excess = exponent - 1;
  const float k = std::pow(excess * std::pow(2.0f, allowed()) / (1 - std::pow(static_cast<float>(n_vocab_), -excess)),
                           1 / exponent);
  // Not a number where there is one candidate, or all are alike.
  if (!(k >= 1)) return 1;
  return k < static_cast<float>(candidates.size()) ? static_cast<size_t>(k) : candidates.size();
}

size_t MirostatV2::choose(Candidates& candidates, std::vector<float>& weights, Random& random) {
  weigh(candidates, weights);
  const float total = std::accumulate(weights.begin(), weights.end(), 0.0f);
  const auto is_too_surprising = [&](float weight) { return -std::log2(weight / total) > allowed(); };
  const auto end = std::find_if(weights.begin() + 1, weights.end(), is_too_surprising);
  weights.erase(end, weights.end());
  candidates.resize(weights.size());
  return draw(weights, random);
}

}  // namespace corosrv
