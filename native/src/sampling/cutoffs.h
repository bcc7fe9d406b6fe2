// Stages that cut the tail of a distribution off.
#pragma once

#include <cstddef>

#include "sampling/stage.h"

namespace corosrv {

class TopK final : public Stage {
 public:
  explicit TopK(size_t k) : k_(k) {}
  void apply(Candidates& candidates, Random& random) override;

 private:
  const size_t k_;
};

// The fewest candidates whose probabilities add up to p.
class TopP final : public Stage {
 public:
  TopP(float p, size_t min_keep) : p_(p), min_keep_(min_keep) {}
  void apply(Candidates& candidates, Random& random) override;

 private:
  const float p_;
  const size_t min_keep_;
};

// Candidates that are at least p times as likely as the best.
class MinP final : public Stage {
 public:
  MinP(float p, size_t min_keep) : p_(p), min_keep_(min_keep) {}
  void apply(Candidates& candidates, Random& random) override;

 private:
  const float p_;
  const size_t min_keep_;
};

// Locally typical sampling (Meister et al. 2022): the candidates whose surprise is nearest to the expected one, until
// their probabilities add up to p. May drop the best.
class TypicalP final : public Stage {
 public:
  TypicalP(float p, size_t min_keep) : p_(p), min_keep_(min_keep) {}
  void apply(Candidates& candidates, Random& random) override;

 private:
  const float p_;
  const size_t min_keep_;
};

// Candidates whose logit is at most n standard deviations below the best (Tang et al. 2024).
class TopNSigma final : public Stage {
 public:
  explicit TopNSigma(float n) : n_(n) {}
  void apply(Candidates& candidates, Random& random) override;

 private:
  const float n_;
};

// The least logit that TopNSigma leaves of a row; those of -infinity and NaN do not count.
float least_by_sigma(const float* logits, size_t size, float n);
void drop_below(float least, Candidates& candidates);

}  // namespace corosrv
