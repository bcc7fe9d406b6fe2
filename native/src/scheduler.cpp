#include "scheduler.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace corosrv {

namespace {

using State = Sequence::State;

bool is_in(const Sequence& sequence, State state) { return sequence.state() == state && !sequence.is_paused(); }

bool is_done(const std::unique_ptr<Sequence>& sequence) { return sequence->state() == State::kDone; }

}  // namespace

Scheduler::Scheduler(int32_t slots, int32_t rows) : rows_(rows) {
  for (int32_t slot = slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

size_t Scheduler::admit(Clock::time_point now) {
  size_t started = 0;
  while (!free_slots_.empty() && !waiting_.empty()) {
    std::unique_ptr<Sequence> sequence = std::move(waiting_.front());
    waiting_.pop_front();
    sequence->start(free_slots_.back(), now);
    free_slots_.pop_back();
    running_.push_back(std::move(sequence));
    ++started;
  }
  return started;
}

int32_t Scheduler::n_decoding() const {
  return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(),
                                            [](const auto& sequence) { return is_in(*sequence, State::kDecoding); }));
}

int32_t Scheduler::n_prefilling() const {
  return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(),
                                            [](const auto& sequence) { return is_in(*sequence, State::kPrefilling); }));
}

bool Scheduler::has_work() const {
  if (!waiting_.empty() && !free_slots_.empty()) return true;
  return std::any_of(running_.begin(), running_.end(),
                     [](const auto& sequence) { return !sequence->is_paused() && sequence->state() != State::kDone; });
}

Plan Scheduler::plan(int32_t prompt_tokens) {
  Plan plan;
  plan_decodes(plan, n_prefilling() > 0 ? rows_ - std::min(prompt_tokens, rows_ / 4) : rows_);
  plan_prompts(plan, std::min(prompt_tokens, rows_ - plan.n_decode));
  return plan;
}

void Scheduler::plan_decodes(Plan& plan, int32_t rows) {
  auto first_left_out = running_.end();
  for (auto sequence = running_.begin(); sequence != running_.end(); ++sequence) {
    if (!is_in(**sequence, State::kDecoding)) continue;
    if (plan.n_decode == rows) {
      first_left_out = sequence;
      break;
    }
    plan.items.push_back({sequence->get(), 1});
    ++plan.n_decode;
  }
  if (first_left_out != running_.end()) std::rotate(running_.begin(), first_left_out, running_.end());
}

void Scheduler::plan_prompts(Plan& plan, int32_t prompt_tokens) {
  std::vector<Sequence*> reading;
  for (auto& sequence : running_) {
    if (is_in(*sequence, State::kPrefilling)) reading.push_back(sequence.get());
  }
  if (reading.empty() || prompt_tokens <= 0) return;

  const auto oldest = std::min_element(
      reading.begin(), reading.end(), [](const Sequence* a, const Sequence* b) { return a->started() < b->started(); });
  std::swap(*oldest, reading.front());
  std::stable_sort(reading.begin() + 1, reading.end(),
                   [](const Sequence* a, const Sequence* b) { return a->n_pending() < b->n_pending(); });

  const int32_t reserved = std::min((prompt_tokens + 1) / 2, reading.front()->n_pending());
  int32_t left = prompt_tokens - reserved;
  for (size_t i = 1; i < reading.size() && left > 0; ++i) {
    const int32_t n_tokens = std::min(left, reading[i]->n_pending());
    plan.items.push_back({reading[i], n_tokens});
    left -= n_tokens;
  }
  plan.items.push_back({reading.front(), std::min(reserved + left, reading.front()->n_pending())});
  for (auto item = plan.items.begin() + plan.n_decode; item != plan.items.end(); ++item)
    plan.n_prompt += item->n_tokens;
}

std::vector<int32_t> Scheduler::sweep(size_t& n_unstarted) {
  std::vector<int32_t> freed;
  for (const auto& sequence : running_) {
    if (is_done(sequence)) freed.push_back(sequence->slot());
  }
  running_.erase(std::remove_if(running_.begin(), running_.end(), is_done), running_.end());
  const size_t n_before = waiting_.size();
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_done), waiting_.end());
  n_unstarted = n_before - waiting_.size();

  free_slots_.insert(free_slots_.end(), freed.begin(), freed.end());
  std::sort(free_slots_.begin(), free_slots_.end(), std::greater<int32_t>());
  return freed;
}

}  // namespace corosrv
