// What of a step is computed together.
#pragma once

#include <vector>

#include "loop/scheduler.h"

namespace corosrv {

// Generations and what is to become vectors are computed apart, and so are different adapters, and tokens and embedding
// rows, and the rows of each image that is not causal: each such part of a plan is a batch of every step, so that none
// waits for another. In each the items are in order of their slots. Where slots share cells, libllama's kernels may
// read those of others: rows of different sequences are apart there, because some lead to numbers that are none.
std::vector<std::vector<Plan::Item>> batches_of(const Plan& plan, bool shares_cells);

}  // namespace corosrv
