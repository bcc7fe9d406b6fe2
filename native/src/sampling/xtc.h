// Exclude top choices.
#pragma once

#include "sampling/stage.h"

namespace corosrv {

// Now and then, with this probability, all candidates that are likelier than the threshold give way to the last of
// them.
class Xtc final : public Stage {
 public:
  Xtc(float probability, float threshold, size_t min_keep)
      : probability_(probability), threshold_(threshold), min_keep_(min_keep) {}

  // Above one half no two candidates can be.
  static bool is_on(const Sampling& sampling) { return sampling.xtc_probability > 0 && sampling.xtc_threshold <= 0.5f; }

  void apply(Candidates& candidates, Random& random) override;

 private:
  const float probability_;
  const float threshold_;
  const size_t min_keep_;
};

}  // namespace corosrv
