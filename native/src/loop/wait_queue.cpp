#include "loop/wait_queue.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace corosrv {

namespace {

constexpr int32_t kFirstClass = 1;
constexpr auto kAgeingInterval = std::chrono::seconds(1);  // everybody is looked at, and nobody cares for less

// What it was, less one for every `interval` that it has waited; `first` at the least.
int32_t risen(int32_t from, int32_t first, Clock::duration interval, const Sequence& sequence, Clock::time_point now) {
  const auto n_risen = std::max((now - sequence.waits_since()) / interval, Clock::rep{0});
  return static_cast<int32_t>(std::max<Clock::rep>(from - n_risen, first));
}

int32_t class_of(const Sequence& sequence, Clock::time_point now) {
  return risen(sequence.priority(), kFirstClass, WaitQueue::kClassWait, sequence, now);
}

bool is_free(int32_t wanted, const std::vector<int32_t>& free_slots) {
  if (wanted < 0) return !free_slots.empty();
  return std::find(free_slots.begin(), free_slots.end(), wanted) != free_slots.end();
}

}  // namespace

bool WaitQueue::Place::operator<(const Place& other) const {
  return std::tie(priority, deadline, arrival) < std::tie(other.priority, other.deadline, other.arrival);
}

WaitQueue::Key WaitQueue::key_of(const Sequence& sequence, Clock::time_point now) {
  return {sequence.owner(), sequence.wanted_slot(), risen(sequence.tier(), 0, kTierWait, sequence, now)};
}

// What was added first is next, whoever's it is.
OwnerLedger::Rank WaitQueue::rank_of(const Key& key, const Place& first) const {
  if (first.priority == 0) return {-1, 0, 0};
  OwnerLedger::Rank rank = ledger_->rank(std::get<0>(key));
  rank.tier = std::get<2>(key);
  return rank;
}

template <typename Change>
void WaitQueue::change(Lines::iterator line, Change change) {
  auto& [waiting, rank] = line->second;
  if (!waiting.empty()) heads_.erase({rank, waiting.begin()->first, line});
  change(waiting);
  if (waiting.empty()) {
    lines_.erase(line);
  } else {
    const Place& first = waiting.begin()->first;
    rank = rank_of(line->first, first);
    heads_.insert({rank, first, line});
  }
}

void WaitQueue::add(std::unique_ptr<Sequence> sequence) {
  const auto deadline = std::min(sequence->deadline(), sequence->submitted() + kPatience);
  if (sequence->arrival() < 0) sequence->set_arrival(n_added_++);
  const Place place{sequence->priority(), deadline, sequence->arrival()};
  const Key key = key_of(*sequence, sequence->waits_since());
  insert(key, place, std::move(sequence));
}

void WaitQueue::add_first(std::unique_ptr<Sequence> sequence) {
  const Key key = key_of(*sequence, sequence->waits_since());
  insert(key, {0, Clock::time_point::min(), -++n_added_first_}, std::move(sequence));
}

void WaitQueue::insert(const Key& key, const Place& place, std::unique_ptr<Sequence> sequence) {
  change(lines_.try_emplace(key).first, [&](Waiting& waiting) { waiting.emplace(place, std::move(sequence)); });
  ++size_;
}

void WaitQueue::age(Clock::time_point now) {
  if (now < next_ageing_) return;
  next_ageing_ = now + kAgeingInterval;
  std::vector<std::pair<Key, Waiting::node_type>> risen;
  for (auto next = lines_.begin(); next != lines_.end();) {
    const auto line = next++;
    const auto rises = [now, &key = line->first](const auto& waiting) {
      return class_of(*waiting.second, now) < waiting.first.priority || key_of(*waiting.second, now) < key;
    };
    if (std::none_of(line->second.waiting.begin(), line->second.waiting.end(), rises)) continue;
    change(line, [&](Waiting& waiting) {
      for (auto other = waiting.begin(); other != waiting.end();) {
        const auto current = other++;
        if (rises(*current)) risen.emplace_back(key_of(*current->second, now), waiting.extract(current));
      }
    });
  }
  for (auto& one : risen) {
    auto& node = one.second;
    if (node.key().priority > 0) node.key().priority = class_of(*node.mapped(), now);
    change(lines_.try_emplace(one.first).first, [&](Waiting& waiting) { waiting.insert(std::move(node)); });
  }
}

void WaitQueue::reorder(uint64_t owner) {
  const Key first{owner, std::numeric_limits<int32_t>::min(), 0};
  for (auto line = lines_.lower_bound(first); line != lines_.end() && std::get<0>(line->first) == owner; ++line) {
    change(line, [](Waiting&) {});
  }
}

const WaitQueue::Head* WaitQueue::next_head(const std::vector<int32_t>& free_slots) const {
  const auto next = std::find_if(heads_.begin(), heads_.end(),
                                 [&](const Head& head) { return is_free(std::get<1>(head.line->first), free_slots); });
  return next == heads_.end() ? nullptr : &*next;
}

const Sequence* WaitQueue::next(const std::vector<int32_t>& free_slots) const {
  const Head* const head = next_head(free_slots);
  return head == nullptr ? nullptr : head->line->second.waiting.begin()->second.get();
}

std::unique_ptr<Sequence> WaitQueue::take_next(const std::vector<int32_t>& free_slots) {
  std::unique_ptr<Sequence> sequence;
  const Head* const head = next_head(free_slots);
  if (head == nullptr) return sequence;
  change(head->line, [&](Waiting& waiting) {
    sequence = std::move(waiting.begin()->second);
    waiting.erase(waiting.begin());
  });
  --size_;
  return sequence;
}

bool WaitQueue::has_next(const std::vector<int32_t>& free_slots) const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [&](const auto& line) { return is_free(std::get<1>(line.first), free_slots); });
}

void WaitQueue::sweep(std::vector<std::unique_ptr<Sequence>>& done) {
  if (!std::exchange(was_visited_, false)) return;
  const size_t n_before = done.size();
  for (auto next = lines_.begin(); next != lines_.end();) {
    change(next++, [&done](Waiting& waiting) {
      for (auto other = waiting.begin(); other != waiting.end();) {
        const auto current = other++;
        if (current->second->state() != Sequence::State::kDone) continue;
        done.push_back(std::move(current->second));
        waiting.erase(current);
      }
    });
  }
  size_ -= done.size() - n_before;
}

}  // namespace corosrv
