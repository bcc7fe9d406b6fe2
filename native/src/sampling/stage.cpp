#include "sampling/stage.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace corosrv {

namespace {

class Listed final : public Logits {
 public:
  explicit Listed(Candidates& candidates) {
    for (Candidate& candidate : candidates) places_.emplace(candidate.token, &candidate.logit);
  }
  float* find(Token token) override {
    const auto place = places_.find(token);
    return place == places_.end() ? nullptr : place->second;
  }

 private:
  std::unordered_map<Token, float*> places_;
};

}  // namespace

void SparseStage::apply(Candidates& candidates, Random&) {
  Listed listed(candidates);
  change(listed);
  std::sort(candidates.begin(), candidates.end(), is_likelier);
}

void weigh(const Candidates& candidates, std::vector<float>& weights) {
  weights.resize(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) weights[i] = std::exp(candidates[i].logit - candidates[0].logit);
}

}  // namespace corosrv
