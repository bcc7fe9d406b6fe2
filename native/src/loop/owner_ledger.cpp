#include "loop/owner_ledger.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>

namespace corosrv {

OwnerLedger::Order::const_iterator OwnerLedger::first_of(const Order& order, int32_t tier) {
  const auto first = order.lower_bound({{tier, -std::numeric_limits<double>::infinity(), 0}, 0});
  return first != order.end() && first->first.tier == tier ? first : order.end();
}

// Where nobody of a tier waits, the other tiers say how late it is: what has waited there for very long comes among
// those of a better tier (WaitQueue), and is compared to them.
double OwnerLedger::least(int32_t tier) const {
  const auto first = first_of(waiting_, tier);
  if (first != waiting_.end()) return first->first.virtual_s;
  if (waiting_.empty()) return most_s_;
  double least_s = std::numeric_limits<double>::infinity();
  for (int32_t other = 0; other <= kLastTier; ++other) {
    const auto found = first_of(waiting_, other);
    if (found != waiting_.end()) least_s = std::min(least_s, found->first.virtual_s);
  }
  return least_s;
}

void OwnerLedger::join(uint64_t owner, int32_t tier, double weight) {
  assert(tier >= 0 && tier <= kLastTier && weight > 0);
  Account& account = accounts_[owner];
  Rank rank = account.rank;
  if (account.n_tasks == 0) {
    idle_.erase({account.rank, owner});
  } else {
    weights_[static_cast<size_t>(rank.tier)] -= account.weight;
    take_out(owner, account);
  }
  if (!account.waits() || rank.tier != tier) {
    const double known_s = rank.tier == tier ? rank.virtual_s : 0;
    rank = {tier, std::max(known_s, least(tier)), rank.n_running};
  }
  ++account.n_tasks;
  account.weight = weight;
  weights_[static_cast<size_t>(tier)] += weight;
  put_back(owner, account, rank);
}

void OwnerLedger::leave(uint64_t owner) {
  Account& account = accounts_.at(owner);
  assert(account.n_tasks > 0);
  take_out(owner, account);
  if (--account.n_tasks > 0) return put_back(owner, account, account.rank);
  const int32_t tier = account.rank.tier;
  idle_.insert({account.rank, owner});
  double& weights = weights_[static_cast<size_t>(tier)];
  // Sums of many additions are exact again when there is nothing to be summed.
  weights = first_of(active_, tier) == active_.end() ? 0 : weights - account.weight;
  forget_idle(tier);
}

void OwnerLedger::add_running(uint64_t owner, int count) {
  Account& account = accounts_.at(owner);
  take_out(owner, account);
  account.n_running += count;
  Rank rank = account.rank;
  rank.n_running = static_cast<double>(account.n_running) / account.weight;
  put_back(owner, account, rank);
}

void OwnerLedger::charge(uint64_t owner, double seconds) {
  Account& account = accounts_.at(owner);
  assert(account.n_tasks > 0 && seconds >= 0);
  const double virtual_s = account.rank.virtual_s + seconds / account.weight;
  most_s_ = std::max(most_s_, virtual_s);
  take_out(owner, account);
  put_back(owner, account, {account.rank.tier, virtual_s, account.rank.n_running});
  forget_idle(account.rank.tier);
}

void OwnerLedger::take_out(uint64_t owner, const Account& account) {
  active_.erase({account.rank, owner});
  if (account.waits()) waiting_.erase({account.rank, owner});
}

void OwnerLedger::put_back(uint64_t owner, Account& account, const Rank& rank) {
  account.rank = rank;
  active_.insert({rank, owner});
  if (account.waits()) waiting_.insert({rank, owner});
}

// Who would begin with what the least of its tier has, or with more, need not be remembered.
void OwnerLedger::forget_idle(int32_t tier) {
  const bool has_active = first_of(active_, tier) != active_.end();
  const double least_s = has_active ? least(tier) : std::numeric_limits<double>::infinity();
  for (auto first = first_of(idle_, tier); first != idle_.end();) {
    if (idle_.size() <= kMostIdle && first->first.virtual_s > least_s) return;
    accounts_.erase(first->second);
    idle_.erase(first);
    first = first_of(idle_, tier);
  }
}

OwnerLedger::Rank OwnerLedger::rank(uint64_t owner) const { return accounts_.at(owner).rank; }

bool OwnerLedger::exceeds_share(uint64_t owner, int32_t n_slots) const {
  const Account& account = accounts_.at(owner);
  const auto end = weights_.begin() + account.rank.tier + 1;
  const double all = std::accumulate(weights_.begin(), end, 0.0);
  return static_cast<double>(account.n_running) * all > n_slots * account.weight;
}

}  // namespace corosrv
