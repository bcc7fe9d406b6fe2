// What the machine's time went to, by owner, and whose turn it is; knows no clock and no thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace corosrv {

// Charges owners for seconds of the machine. Of those of one tier the next one is whoever has had least of it, by its
// weight: so owners that always have something to do get shares as large as their weights. One that begins to wait
// begins where the least of those that do stands: what it did not ask for is not saved up for it. Nor is it for others
// by one whose few tasks always run: it is none of those that are compared. Where nobody waits, nobody has taken
// anything from others, and it begins with the most that one was charged for.
//
// An owner without tasks is forgotten as soon as that changes nothing, or when kMostIdle others are remembered.
class OwnerLedger {
 public:
  static constexpr int32_t kLastTier = 9;
  static constexpr size_t kMostIdle = 10000;

  // Where an owner stands among others; the least is next.
  struct Rank {
    int32_t tier = 0;
    double virtual_s = 0;  // seconds that it was charged for, by its weight
    double n_running = 0;  // by its weight; so several slots that are free at once do not all go to one owner
    bool operator<(const Rank& other) const {
      return std::tie(tier, virtual_s, n_running) < std::tie(other.tier, other.virtual_s, other.n_running);
    }
    bool operator==(const Rank& other) const {
      return std::tie(tier, virtual_s, n_running) == std::tie(other.tier, other.virtual_s, other.n_running);
    }
  };

  // A task of this owner has come, which waits. The tier, up to kLastTier, and the weight of the last one hold for all.
  void join(uint64_t owner, int32_t tier = 0, double weight = 1);
  // One of its tasks has ended, which had no slot any more.
  void leave(uint64_t owner);
  // One of its tasks has got a slot, and has it no longer.
  void start(uint64_t owner) { add_running(owner, 1); }
  void stop(uint64_t owner) { add_running(owner, -1); }

  // The machine has worked so long for tasks that this owner has.
  void charge(uint64_t owner, double seconds);

  // Of an owner that has tasks.
  Rank rank(uint64_t owner) const;
  // Whether it has more than its share of so many slots, by its weight, beside those of its tier and of better ones.
  bool exceeds_share(uint64_t owner, int32_t n_slots) const;

  // Owners that are remembered.
  size_t size() const { return accounts_.size(); }

 private:
  struct Account {
    Rank rank;
    double weight = 1;
    int64_t n_tasks = 0;
    int64_t n_running = 0;
    bool waits() const { return n_tasks > n_running; }
  };
  // Owners in the order of their ranks.
  using Order = std::set<std::pair<Rank, uint64_t>>;

  // The first of a tier; the end where there is none.
  static Order::const_iterator first_of(const Order& order, int32_t tier);
  // What an owner of this tier has at least that begins to wait.
  double least(int32_t tier) const;
  void add_running(uint64_t owner, int count);
  // Takes an owner out of active_ and waiting_, before its account changes, and puts it back with this rank.
  void take_out(uint64_t owner, const Account& account);
  void put_back(uint64_t owner, Account& account, const Rank& rank);
  void forget_idle(int32_t tier);

  std::unordered_map<uint64_t, Account> accounts_;
  Order active_;                                 // with tasks
  Order waiting_;                                // of these, those that have not all of them in slots
  Order idle_;                                   // without, but with more than the least of their tier
  std::array<double, kLastTier + 1> weights_{};  // of those that have tasks, by tier
  double most_s_ = 0;                            // that an owner has had
};

}  // namespace corosrv
