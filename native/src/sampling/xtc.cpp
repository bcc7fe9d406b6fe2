#include "sampling/xtc.h"

#include <numeric>

namespace corosrv {

void Xtc::apply(Candidates& candidates, Random& random) {
  if (candidates.size() < 2 || random.next() > probability_) return;
  thread_local std::vector<float> weights;
  weigh(candidates, weights);
  const float least = threshold_ * std::accumulate(weights.begin(), weights.end(), 0.0f);
  size_t n_likely = 0;
  while (n_likely < weights.size() && weights[n_likely] >= least) ++n_likely;
  if (n_likely < 2 || candidates.size() - (n_likely - 1) < min_keep_) return;
  candidates.erase(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(n_likely - 1));
}

}  // namespace corosrv
