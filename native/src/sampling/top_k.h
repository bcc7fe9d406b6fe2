// The k largest of many floats, without sorting or copying the rest.
#pragma once

#include <cstddef>
#include <vector>

#include "model/candidate.h"
#include "model/types.h"

namespace corosrv {

// Token of the largest logit, the lowest token among equals; -1 when none is greater than -infinity (NaN never is).
Token argmax(const float* logits, size_t size);

// The `k` largest of `logits` in descending order, equal ones by ascending token; logits of -infinity and NaN are left
// out. `found` is emptied first and its memory reused.
void top_k(const float* logits, size_t size, size_t k, std::vector<Candidate>& found);

// Leaves the `k` likeliest of some candidates, in descending order, equal ones by ascending token.
void keep_best(size_t k, std::vector<Candidate>& found);

}  // namespace corosrv
