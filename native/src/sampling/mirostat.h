// Mirostat (Basu et al. 2020): keeps the surprise of what is drawn near a target.
#pragma once

#include "sampling/chooser.h"

namespace corosrv {

// What both versions share: how much surprise (bits) is allowed, and how it follows what was seen.
class Surprise : public Chooser {
 public:
  Surprise(float tau, float eta) : tau_(tau), eta_(eta), allowed_(2 * tau) {}
  void accept() override;
  State state() const override { return {allowed_, 0}; }
  void restore(const State& state) override { allowed_ = state[0]; }

 protected:
  float allowed() const { return allowed_; }
  // Draws of what is left, and remembers how surprising that was.
  size_t draw(const std::vector<float>& weights, Random& random);

 private:
  const float tau_;
  const float eta_;
  float allowed_;
  float change_ = 0;  // once what was drawn is accepted
};

// Estimates from the best hundred how fast probabilities fall, and how many candidates have the surprise wanted.
class Mirostat final : public Surprise {
 public:
  Mirostat(float tau, float eta, int32_t n_vocab) : Surprise(tau, eta), n_vocab_(n_vocab) {}
  size_t choose(Candidates& candidates, std::vector<float>& weights, Random& random) override;

 private:
  size_t n_wanted(const Candidates& candidates) const;

  const int32_t n_vocab_;
};

// Leaves out whatever is more surprising than allowed.
class MirostatV2 final : public Surprise {
 public:
  using Surprise::Surprise;
  size_t choose(Candidates& candidates, std::vector<float>& weights, Random& random) override;
};

}  // namespace corosrv
