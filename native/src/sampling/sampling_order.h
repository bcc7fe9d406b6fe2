// The stages of a request, in its order.
#pragma once

#include <memory>
#include <vector>

#include "model/types.h"
#include "sampling/stage.h"

namespace corosrv {

// Three parts: what changes the logits of a few tokens and can do so in the model's row; the cut that turns the row
// into candidates; what works on these. So the whole vocabulary becomes candidates only where no cut comes first.
struct SamplingOrder {
  // `context`: tokens that a slot holds.
  SamplingOrder(const Sampling& sampling, int32_t context);

  std::vector<std::unique_ptr<SparseStage>> on_row;
  float n_sigma = 0;  // of the row: below it nothing is a candidate; 0 is off
  size_t k = 0;       // candidates at most; 0: all
  std::vector<std::unique_ptr<Stage>> on_candidates;

  bool may_raise = false;       // on_row may make a logit larger
  bool is_greedy = false;       // the best candidate is drawn
  bool is_best_of_row = false;  // and that is the best of the row: nothing takes it away in between
};

}  // namespace corosrv
