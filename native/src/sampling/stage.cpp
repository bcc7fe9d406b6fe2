#include "sampling/stage.h"

#include <algorithm>
#include <cmath>

namespace corosrv {

void SparseStage::apply(Candidates& candidates, Random&) {
  ListedLogits listed(candidates);
  change(listed);
  std::sort(candidates.begin(), candidates.end(), is_likelier);
}

void weigh(const Candidates& candidates, std::vector<float>& weights) {
  weights.resize(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) weights[i] = std::exp(candidates[i].logit - candidates[0].logit);
}

}  // namespace corosrv
