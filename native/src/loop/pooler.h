// The vectors of a sequence's tokens to what was asked for: one vector, or all of them.
#pragma once

#include <cstddef>
#include <vector>

#include "model/types.h"

namespace corosrv {

// Pools as the vectors come, so that a sequence may be computed in pieces, beside any others, and its vector depends on
// neither: libllama pools what one of its micro-batches holds of a sequence, which may be a part.
class Pooler {
 public:
  explicit Pooler(const VectorWish& wish);

  // The next token's, of wish.size numbers.
  void add(const float* vector);
  // As if none had been added.
  void clear();
  // What they come to; at least one was added.
  std::vector<float> result() const;

 private:
  size_t size() const { return static_cast<size_t>(wish_.size); }

  const VectorWish wish_;
  size_t n_added_ = 0;
  std::vector<double> sum_;     // kMean
  std::vector<float> vectors_;  // those of the others that count
};

// In place: -1 as it is, 0 so that the largest number is 32760, p so that the p-norm is 1. Zeros stay zeros.
void normalize(std::vector<float>& vector, int32_t norm);

}  // namespace corosrv
