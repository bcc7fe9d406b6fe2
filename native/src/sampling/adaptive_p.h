// Adaptive-p: prefers candidates whose probability is near a target that follows what was drawn.
#pragma once

#include "sampling/chooser.h"

namespace corosrv {

// The average probability of what is drawn, weighed by `decay` for each token since, is kept near `target`.
class AdaptiveP final : public Chooser {
 public:
  AdaptiveP(float target, float decay);
  size_t choose(Candidates& candidates, std::vector<float>& weights, Random& random) override;
  void accept() override;
  State state() const override { return {sum_, weight_}; }
  void restore(const State& state) override {
    sum_ = state[0];
    weight_ = state[1];
  }

 private:
  float adapted_target() const;

  const float target_;
  const float decay_;
  float sum_;         // of the probabilities drawn, decayed
  float weight_;      // that they have together
  float drawn_ = -1;  // the probability of what was chosen, until it is accepted
};

}  // namespace corosrv
