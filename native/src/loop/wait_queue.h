// The sequences that wait for a slot, and which of them is next; knows no clock and no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "loop/owner_ledger.h"
#include "loop/sequence.h"

namespace corosrv {

// Orders by the owner's tier, then by what its owners have had of the machine, as the ledger has it, and only then,
// which is among one owner's, by priority class, deadline and arrival. A class rises by one with every kClassWait, a
// tier with every kTierWait: so none waits for ever for better ones. A sequence without a deadline, or with a late one,
// is ordered as if it had one kPatience after it was submitted.
//
// Adding and taking cost the logarithm of how many wait.
class WaitQueue {
 public:
  static constexpr auto kClassWait = std::chrono::seconds(10);
  static constexpr auto kTierWait = std::chrono::seconds(30);
  static constexpr auto kPatience = std::chrono::seconds(60);

  // Outlives the queue, and knows the owners of all that wait.
  explicit WaitQueue(const OwnerLedger& ledger) : ledger_(&ledger) {}

  // With the number of its arrival where it has one: then it was here before.
  void add(std::unique_ptr<Sequence> sequence);
  // Before all others, also those that were added so earlier.
  void add_first(std::unique_ptr<Sequence> sequence);

  // Lets those rise that have waited for long.
  void age(Clock::time_point now);

  // The ledger has changed what it says of this owner.
  void reorder(uint64_t owner);

  // Takes out the next one that may have one of these slots. One that wants a certain slot gets no other. Null: none
  // may.
  std::unique_ptr<Sequence> take_next(const std::vector<int32_t>& free_slots);
  // The one that take_next() would take out, or null.
  const Sequence* next(const std::vector<int32_t>& free_slots) const;
  // The next one of those that want no certain slot, or null.
  const Sequence* next_anywhere() const { return next({-1}); }
  // Whether take_next() would find one.
  bool has_next(const std::vector<int32_t>& free_slots) const;

  // Takes out those that are done: that for_each() was called for since, which is how one that waits comes to its end.
  void sweep(std::vector<std::unique_ptr<Sequence>>& done);

  template <typename Visit>
  void for_each(Visit visit) {
    was_visited_ = true;
    for (auto& [key, line] : lines_) {
      for (auto& [place, sequence] : line.waiting) visit(*sequence);
    }
  }

  size_t size() const { return size_; }
  bool is_empty() const { return size_ == 0; }

 private:
  struct Place {
    int32_t priority;  // the class by now; 0: of add_first()
    Clock::time_point deadline;
    int64_t arrival;
    bool operator<(const Place& other) const;
  };
  using Waiting = std::map<Place, std::unique_ptr<Sequence>>;
  // Those of one owner that want the same slot, or any, and have the same tier by now: whether one of them may start
  // depends on nothing else.
  using Key = std::tuple<uint64_t, int32_t, int32_t>;
  struct Line {
    Waiting waiting;
    OwnerLedger::Rank rank;  // of its head
  };

  using Lines = std::map<Key, Line>;
  // The first of a line.
  struct Head {
    OwnerLedger::Rank rank;
    Place place;
    Lines::iterator line;
    bool operator<(const Head& other) const { return rank == other.rank ? place < other.place : rank < other.rank; }
  };

  static Key key_of(const Sequence& sequence, Clock::time_point now);
  OwnerLedger::Rank rank_of(const Key& key, const Place& first) const;
  void insert(const Key& key, const Place& place, std::unique_ptr<Sequence> sequence);
  // The line whose first one is next; null: none is.
  const Head* next_head(const std::vector<int32_t>& free_slots) const;
  // Lets `change` add to a line, or take from it, or nothing of both; forgets it when it is empty.
  template <typename Change>
  void change(Lines::iterator line, Change change);

  const OwnerLedger* ledger_;
  Lines lines_;
  std::set<Head> heads_;  // of all lines: no two of them have the same place
  size_t size_ = 0;
  int64_t n_added_ = 0;
  int64_t n_added_first_ = 0;
  Clock::time_point next_ageing_;
  bool was_visited_ = false;  // since the last sweep, which costs nothing where nobody was
};

}  // namespace corosrv
