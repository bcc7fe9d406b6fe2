// The sequences that wait for a slot, and which of them is next; knows no clock and no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "loop/sequence.h"

namespace corosrv {

// Orders by priority class, which rises by one with every kClassWait, then by deadline, then by arrival. A sequence
// without a deadline, or with a late one, is ordered as if it had one kPatience after it was submitted: so none waits
// for ever for those that come later and are in a greater hurry.
//
// Adding and taking cost the logarithm of how many wait, and a look at each owner that has some running.
class WaitQueue {
 public:
  static constexpr auto kClassWait = std::chrono::seconds(10);
  static constexpr auto kPatience = std::chrono::seconds(60);

  // Sequences that run, by owner; whoever is not in it has none.
  using Running = std::unordered_map<uint64_t, int32_t>;

  void add(std::unique_ptr<Sequence> sequence);
  // Before all others, also those that were added so earlier.
  void add_first(std::unique_ptr<Sequence> sequence);

  // Lets those rise that have waited for long.
  void age(Clock::time_point now);

  // Takes out the next one that may have one of these slots: of the owner with the fewest running, the first in order.
  // One that wants a certain slot gets no other. Null: none may.
  std::unique_ptr<Sequence> take_next(const std::vector<int32_t>& free_slots, const Running& running);
  // The one that take_next() would take out, or null.
  const Sequence* next(const std::vector<int32_t>& free_slots, const Running& running) const;
  // Whether take_next() would find one.
  bool has_next(const std::vector<int32_t>& free_slots) const;

  // Takes out those that are done: that for_each() was called for since, which is how one that waits comes to its end.
  void sweep(std::vector<std::unique_ptr<Sequence>>& done);

  template <typename Visit>
  void for_each(Visit visit) {
    was_visited_ = true;
    for (auto& [key, line] : lines_) {
      for (auto& [place, sequence] : line) visit(*sequence);
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
  // Those of one owner that want the same slot, or any: whether one of them may start depends on nothing else.
  using Key = std::pair<uint64_t, int32_t>;
  using Line = std::map<Place, std::unique_ptr<Sequence>>;

  using Lines = std::map<Key, Line>;
  // The first of a line.
  struct Head {
    Place place;
    Lines::iterator line;
    bool operator<(const Head& other) const { return place < other.place; }
  };

  void insert(const Place& place, std::unique_ptr<Sequence> sequence);
  // The line whose first one is next; null: none is.
  const Head* next_head(const std::vector<int32_t>& free_slots, const Running& running) const;
  // Lets `change` add to a line, or take from it; forgets it when it is empty.
  template <typename Change>
  void change(Lines::iterator line, Change change);

  Lines lines_;
  std::set<Head> heads_;  // of all lines: no two of them have the same place
  size_t size_ = 0;
  int64_t n_added_ = 0;
  int64_t n_added_first_ = 0;
  Clock::time_point next_ageing_;
  bool was_visited_ = false;  // since the last sweep, which costs nothing where nobody was
};

}  // namespace corosrv
