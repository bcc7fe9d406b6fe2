// Temperature, fixed or by entropy.
#pragma once

#include "sampling/stage.h"

namespace corosrv {

// With a range, the temperature is between `temperature - range`, where the model is certain, and `temperature +
// range`, where all candidates are as likely: (entropy / the largest possible) to the power of `exponent` of the way.
class Temperature final : public Stage {
 public:
  Temperature(float temperature, float range, float exponent)
      : temperature_(temperature), range_(range), exponent_(exponent) {}

  void apply(Candidates& candidates, Random& random) override;

 private:
  float dynamic(const Candidates& candidates) const;

  const float temperature_;
  const float range_;  // 0 is fixed
  const float exponent_;
};

}  // namespace corosrv
