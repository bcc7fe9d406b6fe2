#include "loop/wait_queue.h"

#include <algorithm>
#include <limits>
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

template <typename Change>
void WaitQueue::change(Lines::iterator line, Change change) {
  if (!line->second.empty()) heads_.erase({line->second.begin()->first, line});
  change(line->second);
  if (line->second.empty()) {
    lines_.erase(line);
  } else {
    heads_.insert({line->second.begin()->first, line});
  }
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
  change(lines_.try_emplace(key).first, [&](Line& line) { line.emplace(place, std::move(sequence)); });
  ++size_;
}

void WaitQueue::age(Clock::time_point now) {
  if (now < next_ageing_) return;
  next_ageing_ = now + kAgeingInterval;
  const auto rises = [now](const auto& waiting) { return class_of(*waiting.second, now) < waiting.first.priority; };
  for (auto line = lines_.begin(); line != lines_.end(); ++line) {
    if (std::none_of(line->second.begin(), line->second.end(), rises)) continue;
    change(line, [&](Line& waiting) {
      for (auto next = waiting.begin(); next != waiting.end();) {
        const auto current = next++;
        if (!rises(*current)) continue;
        auto node = waiting.extract(current);
        node.key().priority = class_of(*node.mapped(), now);
        waiting.insert(std::move(node));  // before `next`: nobody is looked at twice
      }
    });
  }
}

const WaitQueue::Head* WaitQueue::next_head(const std::vector<int32_t>& free_slots, const Running& running) const {
  const Head* best = nullptr;
  int32_t fewest = std::numeric_limits<int32_t>::max();
  // In order: of those with as few running the first one is taken.
  for (auto head = heads_.begin(); head != heads_.end() && fewest > 0; ++head) {
    const auto& [owner, wanted] = head->line->first;
    if (!is_free(wanted, free_slots)) continue;
    const auto known = running.find(owner);
    const int32_t n_running = known == running.end() ? 0 : known->second;
    if (n_running >= fewest) continue;
    best = &*head;
    fewest = n_running;
  }
  return best;
}

const Sequence* WaitQueue::next(const std::vector<int32_t>& free_slots, const Running& running) const {
  const Head* const head = next_head(free_slots, running);
  return head == nullptr ? nullptr : head->line->second.begin()->second.get();
}

std::unique_ptr<Sequence> WaitQueue::take_next(const std::vector<int32_t>& free_slots, const Running& running) {
  std::unique_ptr<Sequence> sequence;
  const Head* const head = next_head(free_slots, running);
  if (head == nullptr) return sequence;
  change(head->line, [&](Line& line) {
    sequence = std::move(line.begin()->second);
    line.erase(line.begin());
  });
  --size_;
  return sequence;
}

bool WaitQueue::has_next(const std::vector<int32_t>& free_slots) const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [&](const auto& line) { return is_free(line.first.second, free_slots); });
}

void WaitQueue::sweep(std::vector<std::unique_ptr<Sequence>>& done) {
  if (!std::exchange(was_visited_, false)) return;
  const size_t n_before = done.size();
  for (auto next = lines_.begin(); next != lines_.end();) {
    change(next++, [&done](Line& line) {
      for (auto waiting = line.begin(); waiting != line.end();) {
        const auto current = waiting++;
        if (current->second->state() != Sequence::State::kDone) continue;
        done.push_back(std::move(current->second));
        line.erase(current);
      }
    });
  }
  size_ -= done.size() - n_before;
}

}  // namespace corosrv
