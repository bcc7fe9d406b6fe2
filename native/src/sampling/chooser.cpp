#include "sampling/chooser.h"

#include <algorithm>
#include <numeric>

#include "sampling/adaptive_p.h"
#include "sampling/mirostat.h"

namespace corosrv {

namespace {

class Best final : public Chooser {
 public:
  size_t choose(Candidates& candidates, std::vector<float>& weights, Random&) override {
    candidates.resize(1);
    weights.assign(1, 1.0f);
    return 0;
  }
};

class Draw final : public Chooser {
 public:
  size_t choose(Candidates& candidates, std::vector<float>& weights, Random& random) override {
    weigh(candidates, weights);
    return draw_by_weight(weights, random);
  }
};

}  // namespace

size_t draw_by_weight(const std::vector<float>& weights, Random& random) {
  float left = random.next() * std::accumulate(weights.begin(), weights.end(), 0.0f);
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return i;
  }
  return weights.size() - 1;
}

std::unique_ptr<Chooser> make_chooser(const Sampling& sampling, bool is_greedy, int32_t n_vocab) {
  if (is_greedy) return std::make_unique<Best>();
  if (sampling.mirostat == 1) return std::make_unique<Mirostat>(sampling.mirostat_tau, sampling.mirostat_eta, n_vocab);
  if (sampling.mirostat == 2) return std::make_unique<MirostatV2>(sampling.mirostat_tau, sampling.mirostat_eta);
  const auto& order = sampling.samplers;
  const bool is_adaptive = std::find(order.begin(), order.end(), SamplerKind::kAdaptiveP) != order.end();
  if (is_adaptive && sampling.adaptive_target >= 0) {
    return std::make_unique<AdaptiveP>(sampling.adaptive_target, sampling.adaptive_decay);
  }
  return std::make_unique<Draw>();
}

}  // namespace corosrv
