#include "loop/drafts.h"

#include <algorithm>
#include <vector>

namespace corosrv {

namespace {

struct Draft {
  Plan::Item* item;
  Prospect prospect;
  double chance;  // of its next row, all before it included
  int32_t n_tokens = 0;
};

std::vector<Draft> possible_drafts(Plan& plan, int32_t most) {
  std::vector<Draft> drafts;
  for (Plan::Item& item : plan.items) {
    if (item.sequence->n_drafted() > 0) continue;
    const Prospect prospect = item.sequence->prospect(most);
    if (prospect.n_tokens > 0) drafts.push_back({&item, prospect, prospect.chance});
  }
  return drafts;
}

}  // namespace

void add_drafts(Plan& plan, const RowPrices& prices, int32_t most) {
  const auto may_pay = [&](double chance) {
    return prices.pays(chance, plan.n_decode + plan.n_drafted, plan.n_decode + plan.n_true);
  };
  if (most < 1 || plan.n_prompt > 0 || !may_pay(1)) return;
  std::vector<Draft> drafts = possible_drafts(plan, most);
  while (!drafts.empty() && plan.n_drafted < most) {
    Draft& best = *std::max_element(drafts.begin(), drafts.end(), [](auto& a, auto& b) { return a.chance < b.chance; });
    if (!may_pay(best.chance)) break;
    plan.n_true += best.chance;
    ++plan.n_drafted;
    best.chance = ++best.n_tokens < best.prospect.n_tokens ? best.chance * best.prospect.chance : 0;
  }
  for (const Draft& draft : drafts) {
    draft.item->sequence->draft(draft.n_tokens);
    draft.item->n_tokens += draft.n_tokens;
  }
}

}  // namespace corosrv
