#include "loop/wait_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace corosrv {

namespace {

constexpr int32_t kFirstClass = 1;
constexpr auto kAgeingInterval = std::chrono::seconds(1);  // everybody is looked at, and nobody cares for less

int32_t class_of(const Sequence& sequence, Clock::time_point now) {
  const auto n_risen = std::max((now - sequence.submitted()) / WaitQueue::kClassWait, Clock::rep{0});
  return static_cast<int32_t>(std::max<Clock::rep>(sequence.priority() - n_risen, kFirstClass));
}

bool is_free(int32_t wanted, const std::vector<int32_t>& free_slots) {
  if (wanted < 0) return !free_slots.empty();
  return std::find(free_slots.begin(), free_slots.end(), wanted) != free_slots.end();
}

}  // namespace

bool WaitQueue::Place::operator<(const Place& other) const {
  return std::tie(priority, deadline, arrival) < std::tie(other.priority, other.deadline, other.arrival);
}

void WaitQueue::add(std::unique_ptr<Sequence> sequence) {
  const auto deadline = std::min(sequence->deadline(), sequence->submitted() + kPatience);
  const Place place{sequence->priority(), deadline, n_added_++};
  insert(place, std::move(sequence));
}

void WaitQueue::add_first(std::unique_ptr<Sequence> sequence) {
  insert({0, Clock::time_point::min(), -++n_added_first_}, std::move(sequence));
}

void WaitQueue::insert(const Place& place, std::unique_ptr<Sequence> sequence) {
  const Key key{sequence->sharing_scope().owner, sequence->wanted_slot()};
  lines_[key].emplace(place, std::move(sequence));
  ++size_;
}

void WaitQueue::age(Clock::time_point now) {
  if (now < next_ageing_) return;
  next_ageing_ = now + kAgeingInterval;
  for (auto& [key, line] : lines_) {
    for (auto next = line.begin(); next != line.end();) {
      const auto current = next++;
      const int32_t risen = class_of(*current->second, now);
      if (current->first.priority <= risen) continue;
      auto node = line.extract(current);
      node.key().priority = risen;
      line.insert(std::move(node));  // before `next`: nobody is looked at twice
    }
  }
}

std::unique_ptr<Sequence> WaitQueue::take_next(const std::vector<int32_t>& free_slots, const Running& running) {
  auto best = lines_.end();
  int32_t fewest = 0;
  for (auto line = lines_.begin(); line != lines_.end(); ++line) {
    const auto& [owner, wanted] = line->first;
    if (!is_free(wanted, free_slots)) continue;
    const auto known = running.find(owner);
    const int32_t n_running = known == running.end() ? 0 : known->second;
    const bool is_better = best == lines_.end() || n_running < fewest ||
                           (n_running == fewest && line->second.begin()->first < best->second.begin()->first);
    if (!is_better) continue;
    best = line;
    fewest = n_running;
  }
  if (best == lines_.end()) return nullptr;
  const auto first = best->second.begin();
  std::unique_ptr<Sequence> sequence = std::move(first->second);
  best->second.erase(first);
  if (best->second.empty()) lines_.erase(best);
  --size_;
  return sequence;
}

bool WaitQueue::has_next(const std::vector<int32_t>& free_slots) const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [&](const auto& line) { return is_free(line.first.second, free_slots); });
}

void WaitQueue::sweep(std::vector<std::unique_ptr<Sequence>>& done) {
  if (!std::exchange(was_visited_, false)) return;
  for (auto next = lines_.begin(); next != lines_.end();) {
    const auto line = next++;
    for (auto waiting = line->second.begin(); waiting != line->second.end();) {
      const auto current = waiting++;
      if (current->second->state() != Sequence::State::kDone) continue;
      done.push_back(std::move(current->second));
      line->second.erase(current);
      --size_;
    }
    if (line->second.empty()) lines_.erase(line);
  }
}

}  // namespace corosrv
