#include "loop/batches.h"

#include <algorithm>

namespace corosrv {

namespace {

// libllama computes slots that stand in a row, each one's rows together, in one go.
std::vector<Plan::Item> in_order_of_slots(std::vector<Plan::Item> items) {
  std::sort(items.begin(), items.end(),
            [](const Plan::Item& a, const Plan::Item& b) { return a.sequence->slot() < b.sequence->slot(); });
  return items;
}

bool may_share_batch(const Sequence& a, const Sequence& b, bool shares_cells) {
  if (a.reads_non_causal() || b.reads_non_causal()) return false;
  if (shares_cells && (a.reads_rows() || b.reads_rows())) return false;
  return a.wants_vectors() == b.wants_vectors() && a.reads_rows() == b.reads_rows() &&
         a.sharing_scope().adapters == b.sharing_scope().adapters;
}

}  // namespace

std::vector<std::vector<Plan::Item>> batches_of(const Plan& plan, bool shares_cells) {
  std::vector<std::vector<Plan::Item>> batches;
  for (const Plan::Item& item : in_order_of_slots(plan.items)) {
    const auto batch = std::find_if(batches.begin(), batches.end(), [&](const auto& other) {
      return may_share_batch(*other.front().sequence, *item.sequence, shares_cells);
    });
    if (batch == batches.end()) {
      batches.push_back({item});
    } else {
      batch->push_back(item);
    }
  }
  return batches;
}

}  // namespace corosrv
