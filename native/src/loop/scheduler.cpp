#include "loop/scheduler.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <iterator>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "loop/prefix_cache.h"

namespace corosrv {

namespace {

using State = Sequence::State;

// Plans with the same slots in use before gaps are worth closing: a slot that was just freed is often taken again.
constexpr int32_t kCalm = 2;

// Tokens that each sequence is to have room for when another one starts in cells that they share: what is pre-empted at
// once has been read in vain.
constexpr int32_t kTokensAhead = 64;

bool is_in(const Sequence& sequence, State state) { return sequence.state() == state && !sequence.is_paused(); }

// Knows where it begins, or whom it follows there: so the older never waits for the younger of two that start together.
bool may_lead(const Sequence& sequence) {
  const bool is_undecided = sequence.state() == State::kStarting && sequence.leader() == nullptr;
  return !is_undecided && !sequence.is_paused() && sequence.shares_prefix();
}

// Whether it waits, perhaps by way of others, for `leader`.
bool follows(const Sequence& sequence, const Sequence& leader) {
  const Sequence* other = sequence.leader();
  while (other != nullptr && other != &leader) other = other->leader();
  return other == &leader;
}

bool is_done(const std::unique_ptr<Sequence>& sequence) { return sequence->state() == State::kDone; }

// Keeps the order of both.
template <typename Sequences>
void move_done(Sequences& sequences, std::vector<std::unique_ptr<Sequence>>& ended) {
  const auto done = std::stable_partition(sequences.begin(), sequences.end(), std::not_fn(is_done));
  std::move(done, sequences.end(), std::back_inserter(ended));
  sequences.erase(done, sequences.end());
}

}  // namespace

Scheduler::Scheduler(int32_t slots, int32_t rows, bool reads_whole, int32_t shared_cells, int32_t window)
    : slots_(slots),
      rows_(rows),
      reads_whole_(reads_whole),
      shared_cells_(shared_cells),
      window_(window),
      capacity_(slots) {
  for (int32_t slot = slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  const uint64_t owner = sequence->owner();
  ledger_->join(owner, sequence->tier(), sequence->weight());
  waiting_.add(std::move(sequence));
  waiting_.reorder(owner);  // others of its own, where it has brought another tier
}

size_t Scheduler::admit(Clock::time_point now, const ChooseSlot& choose) {
  waiting_.age(now);
  size_t started = 0;
  while (std::unique_ptr<Sequence> sequence = next_to_start()) {
    if (sequence->is_reader_full()) {
      sequence->set_paused(true, now);
      parked_.push_back(std::move(sequence));
      continue;
    }
    sequence->start(take_slot(*sequence, choose), now);
    ledger_->start(sequence->owner());
    waiting_.reorder(sequence->owner());
    running_.push_back(std::move(sequence));
    ++started;
  }
  if (started > 0) n_calm_ = 0;
  return started;
}

std::unique_ptr<Sequence> Scheduler::next_to_start() {
  if (!has_free_slot() || waiting_.is_empty() || waits_for_cells()) return nullptr;
  return waiting_.take_next(free_slots_);
}

// A sequence fits alone: none is longer than all cells.
bool Scheduler::waits_for_cells() const {
  if (shared_cells_ == 0 || running_.empty()) return false;
  const Sequence* const next = waiting_.next(free_slots_);
  if (next == nullptr) return false;
  int64_t n_cells = next->n_cells(kTokensAhead);
  for (const auto& sequence : running_) n_cells += sequence->n_cells(kTokensAhead);
  return n_cells > shared_cells_;
}

bool Scheduler::lacks(int32_t n_cells) const {
  if (shared_cells_ == 0 || running_.empty()) return false;
  int64_t n_taken = n_cells;
  for (const auto& sequence : running_) n_taken += sequence->n_cells(0);
  return n_taken > shared_cells_;
}

int32_t Scheduler::take_slot(const Sequence& sequence, const ChooseSlot& choose) {
  int32_t wanted = sequence.wanted_slot();
  if (wanted < 0 && choose) wanted = choose(sequence, free_slots_);
  const auto found = std::find(free_slots_.begin(), free_slots_.end(), wanted);
  const auto taken = found == free_slots_.end() ? std::prev(found) : found;
  const int32_t slot = *taken;
  free_slots_.erase(taken);
  return slot;
}

int32_t Scheduler::n_decoding() const {
  return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(),
                                            [](const auto& sequence) { return is_in(*sequence, State::kDecoding); }));
}

int32_t Scheduler::n_decoding_first() const {
  return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(), [](const auto& sequence) {
    return is_in(*sequence, State::kDecoding) && sequence->priority() < kLastClass;
  }));
}

bool Scheduler::reads_for_last_class() const {
  return std::all_of(running_.begin(), running_.end(), [](const auto& sequence) {
    const bool reads = is_in(*sequence, State::kPrefilling) || sequence->leader() != nullptr;
    return !reads || sequence->priority() == kLastClass;
  });
}

int32_t Scheduler::n_prefilling() const {
  return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(),
                                            [](const auto& sequence) { return is_in(*sequence, State::kPrefilling); }));
}

bool Scheduler::has_work() const {
  if ((has_free_slot() && waiting_.has_next(free_slots_)) || idle_holder() != nullptr) return true;
  return std::any_of(running_.begin(), running_.end(),
                     [](const auto& sequence) { return !sequence->is_paused() && sequence->state() != State::kDone; });
}

Plan Scheduler::plan(int32_t prompt_tokens, int32_t last_rows) {
  ++n_calm_;
  Plan plan;
  plan_decodes(plan, n_prefilling() > 0 ? rows_ - std::min(prompt_tokens, rows_ / 4) : rows_, last_rows);
  plan_prompts(plan, std::min(prompt_tokens, rows_ - plan.n_decode));
  return plan;
}

void Scheduler::plan_decodes(Plan& plan, int32_t rows, int32_t last_rows) {
  auto first_left_out = running_.end();
  for (auto sequence = running_.begin(); sequence != running_.end(); ++sequence) {
    if (!is_in(**sequence, State::kDecoding)) continue;
    const bool is_last = (*sequence)->priority() == kLastClass;
    if (plan.n_decode == rows || (is_last && last_rows == 0)) {
      if (first_left_out == running_.end()) first_left_out = sequence;
      if (plan.n_decode == rows) break;
      continue;
    }
    plan.items.push_back({sequence->get(), 1});
    ++plan.n_decode;
    last_rows -= is_last;
  }
  if (first_left_out != running_.end()) std::rotate(running_.begin(), first_left_out, running_.end());
}

void Scheduler::plan_prompts(Plan& plan, int32_t prompt_tokens) {
  std::vector<Reading> reading = all_reading();
  if (reading.empty() || prompt_tokens <= 0) return;

  const auto place = std::min_element(reading.begin(), reading.end(), [this](const Reading& a, const Reading& b) {
    const OwnerLedger::Rank rank = ledger_->rank(a.sequence->owner()), other = ledger_->rank(b.sequence->owner());
    return rank == other ? a.sequence->started() < b.sequence->started() : rank < other;
  });
  const Reading oldest = *place;
  Sequence* const first = oldest.sequence;
  std::swap(*place, reading.back());
  reading.pop_back();

  // Rows that are not causal come whole, in a batch of their own. Of a step's, one image may exceed the budget.
  const auto next_of = [this](const Reading& one, int32_t most) {
    const int32_t n_next = one.sequence->n_next();
    if (one.sequence->reads_non_causal()) return n_next;
    if (window_ == 0) return std::min(most, n_next);
    return std::min({most, n_next, std::max(one.n_awaited, window_ - one.sequence->n_computed())});
  };
  const int32_t reserved = next_of(oldest, reads_whole_ ? prompt_tokens : (prompt_tokens + 1) / 2);
  const int32_t reserved_to_score = first->scores_prompt() ? std::min(reserved, kMostScoredRows) : 0;
  int32_t left_to_score = kMostScoredRows - reserved_to_score;
  const auto take = [&](const Reading& one, int32_t most) {
    Sequence* const sequence = one.sequence;
    int32_t n_tokens = next_of(one, most);
    if (sequence->scores_prompt()) {
      n_tokens = std::min(n_tokens, left_to_score);
      left_to_score -= n_tokens;
    }
    if (n_tokens > 0) plan.items.push_back({sequence, n_tokens});
    plan.n_prompt += n_tokens;
    return n_tokens;
  };
  int32_t left = prompt_tokens - reserved;
  bool has_image = first->reads_non_causal();
  // A heap and no sorted list: of thousands that wait, few fit into a step.
  std::make_heap(reading.begin(), reading.end());
  for (auto end = reading.end(); end != reading.begin() && left > 0; --end) {
    std::pop_heap(reading.begin(), end);
    const Reading& one = *std::prev(end);
    const Sequence* const next = one.sequence;
    if (reads_whole_ && next->n_pending() > left) break;  // those behind it have as much to read, or more
    if (next->reads_non_causal()) {
      if (has_image && next->n_next() > left) continue;
      has_image = true;
    }
    left -= take(one, left);
  }
  left_to_score += reserved_to_score;
  take(oldest, reserved + std::max(left, 0));
}

std::vector<Scheduler::Reading> Scheduler::all_reading() const {
  std::unordered_map<const Sequence*, int32_t> led;  // tokens until the first follower can go on
  std::vector<Reading> reading;
  for (const auto& sequence : running_) {
    if (const Sequence* leader = sequence->leader()) {
      const int32_t n_tokens = sequence->n_led() - leader->n_computed();
      const auto [known, is_new] = led.try_emplace(leader, n_tokens);
      if (!is_new) known->second = std::min(known->second, n_tokens);
    } else if (is_in(*sequence, State::kPrefilling)) {
      reading.push_back({sequence.get(), sequence->n_pending()});
    }
  }
  for (Reading& one : reading) {
    const auto known = led.find(one.sequence);
    if (known != led.end()) one.n_awaited = std::min(one.n_awaited, known->second);
    const int32_t n_until_copy = one.sequence->n_to_copy() - one.sequence->n_computed();
    if (n_until_copy > 0) one.n_awaited = std::min(one.n_awaited, n_until_copy);
  }
  return reading;
}

Scheduler::Leader Scheduler::leader_of(const Sequence& sequence, const MayLead& may_be_copied) const {
  Leader leader;
  for (const auto& other : running_) {
    if (other.get() == &sequence || !may_lead(*other) || follows(*other, sequence)) continue;
    if (other->sharing_scope() != sequence.sharing_scope()) continue;
    const size_t n_tokens = common_prefix(other->tokens(), sequence.tokens());
    if (n_tokens <= leader.n_tokens || (may_be_copied && !may_be_copied(*other, n_tokens))) continue;
    leader = {other.get(), n_tokens};
  }
  return leader;
}

std::unique_ptr<Sequence> Scheduler::take_from_slot(Sequence& sequence) {
  const auto found =
      std::find_if(running_.begin(), running_.end(), [&](const auto& running) { return running.get() == &sequence; });
  assert(found != running_.end());
  release_followers(sequence);
  free_slot(sequence.slot());
  ledger_->stop(sequence.owner());
  waiting_.reorder(sequence.owner());
  std::unique_ptr<Sequence> taken = std::move(*found);
  running_.erase(found);
  return taken;
}

void Scheduler::preempt(Sequence& sequence) {
  std::unique_ptr<Sequence> taken = take_from_slot(sequence);
  sequence.preempt();
  if (sequence.is_paused()) {
    parked_.push_front(std::move(taken));
  } else {
    waiting_.add_first(std::move(taken));
  }
}

void Scheduler::displace(Sequence& sequence, Clock::time_point now) {
  std::unique_ptr<Sequence> taken = take_from_slot(sequence);
  sequence.displace(now);
  waiting_.add(std::move(taken));
}

// While memory is short, whoever starts may find none.
Sequence* Scheduler::to_displace(Clock::time_point now) const {
  if (waiting_.is_empty() || !free_slots_.empty() || capacity_ < slots_) return nullptr;
  const Sequence* const next = waiting_.next_anywhere();
  if (next == nullptr) return nullptr;
  Sequence* worst = nullptr;
  for (const auto& running : running_) {
    if (!may_displace(*next, *running, now)) continue;
    if (worst == nullptr || is_worse(*running, *worst)) worst = running.get();
  }
  return worst;
}

bool Scheduler::may_displace(const Sequence& next, const Sequence& running, Clock::time_point now) const {
  const bool has_work = running.state() == State::kPrefilling || running.state() == State::kDecoding;
  if (!has_work || !running.shares_prefix() || running.is_paused()) return false;
  if (running.n_since_restart() < kLeastTokens || now - running.restarted() < kLeastTime) return false;
  if (!fits_instead(next, running)) return false;
  if (next.owner() == running.owner()) return next.priority() + kClassGap <= running.priority();
  if (next.tier() != running.tier()) return next.tier() < running.tier();
  const double lead = ledger_->rank(running.owner()).virtual_s - ledger_->rank(next.owner()).virtual_s;
  return lead > kMostLead && ledger_->exceeds_share(running.owner(), slots_);
}

bool Scheduler::fits_instead(const Sequence& next, const Sequence& running) const {
  if (shared_cells_ == 0 || running_.size() == 1) return true;
  int64_t n_cells = next.n_cells(kTokensAhead);
  for (const auto& other : running_) n_cells += other.get() == &running ? 0 : other->n_cells(kTokensAhead);
  return n_cells <= shared_cells_;
}

bool Scheduler::is_worse(const Sequence& a, const Sequence& b) const {
  const auto badness = [this](const Sequence& sequence) {
    return std::tuple(sequence.tier(), ledger_->rank(sequence.owner()).virtual_s, sequence.priority(),
                      sequence.state() == State::kPrefilling, sequence.restarted());
  };
  return badness(a) > badness(b);
}

void Scheduler::charge(const std::vector<Plan::Item>& items, double batch_s, double decode_row_s, double prompt_row_s) {
  const bool has_prices = decode_row_s > 0 && prompt_row_s > 0;
  const auto price_of = [&](const Plan::Item& item) {
    const double row_s = is_in(*item.sequence, State::kDecoding) ? decode_row_s : prompt_row_s;
    return item.n_tokens * (has_prices ? row_s : 1);
  };
  double all = 0;
  for (const Plan::Item& item : items) all += price_of(item);
  for (auto item = items.begin(); item != items.end();) {
    const uint64_t owner = item->sequence->owner();
    double own_s = 0;  // of items in a row: the queue is put in order once for them
    for (; item != items.end() && item->sequence->owner() == owner; ++item) {
      const double item_s = batch_s * price_of(*item) / all;
      item->sequence->charge(item_s);
      own_s += item_s;
    }
    ledger_->charge(owner, own_s);
    waiting_.reorder(owner);
  }
}

void Scheduler::unpark() {
  const auto ready =
      std::stable_partition(parked_.begin(), parked_.end(), [](const auto& sequence) { return sequence->is_paused(); });
  for (auto next = parked_.end(); next != ready;) waiting_.add_first(std::move(*--next));
  parked_.erase(ready, parked_.end());
}

Sequence* Scheduler::idle_holder() const {
  if (waiting_.is_empty()) return nullptr;
  if (!has_free_slot() || waits_for_cells()) return paused();
  if (waiting_.has_next(free_slots_)) return nullptr;
  return first_running([this](const auto& sequence) {  // whoever waits does so for a slot that is not free
    return sequence->is_paused() && waiting_.has_next({sequence->slot()});
  });
}

Sequence* Scheduler::paused() const {
  return first_running([](const auto& sequence) { return sequence->is_paused(); });
}

template <typename Predicate>
Sequence* Scheduler::first_running(Predicate is_so) const {
  const auto found = std::find_if(running_.begin(), running_.end(), is_so);
  return found == running_.end() ? nullptr : found->get();
}

Sequence* Scheduler::first_to_give_way() const {
  if (Sequence* const idle = paused()) return idle;
  const auto found = std::max_element(running_.begin(), running_.end(),
                                      [](const auto& a, const auto& b) { return a->started() < b->started(); });
  return found == running_.end() ? nullptr : found->get();
}

bool Scheduler::is_in_use(int32_t slot) const {
  return std::any_of(running_.begin(), running_.end(), [slot](const auto& one) { return one->slot() == slot; });
}

Sequence* Scheduler::above_gap() const {
  if (n_calm_ < kCalm || free_slots_.empty() || running_.empty()) return nullptr;
  const auto highest = std::max_element(running_.begin(), running_.end(),
                                        [](const auto& a, const auto& b) { return a->slot() < b->slot(); });
  const bool may_move = (*highest)->wanted_slot() < 0;
  return may_move && (*highest)->slot() > slot_of_gap() ? highest->get() : nullptr;
}

int32_t Scheduler::lowest_slot_in_use() const {
  return (*std::min_element(running_.begin(), running_.end(),
                            [](const auto& a, const auto& b) { return a->slot() < b->slot(); }))
      ->slot();
}

int32_t Scheduler::slot_of_gap() const {
  const int32_t lowest = lowest_slot_in_use();
  const auto gap = std::find_if(free_slots_.rbegin(), free_slots_.rend(), [=](int32_t slot) { return slot > lowest; });
  return gap == free_slots_.rend() ? slots_ : *gap;
}

void Scheduler::move(Sequence& sequence, int32_t slot) {
  free_slots_.erase(std::find(free_slots_.begin(), free_slots_.end(), slot));
  const int32_t left = sequence.slot();
  sequence.move(slot);
  free_slots_.insert(std::upper_bound(free_slots_.begin(), free_slots_.end(), left, std::greater<int32_t>()), left);
}

void Scheduler::free_slot(int32_t slot) {
  n_calm_ = 0;
  free_slots_.insert(std::upper_bound(free_slots_.begin(), free_slots_.end(), slot, std::greater<int32_t>()), slot);
}

void Scheduler::release_followers(const Sequence& leader) {
  for (auto& sequence : running_) {
    if (sequence->leader() == &leader) sequence->follow(nullptr, 0);
  }
}

Scheduler::Swept Scheduler::sweep() {
  Swept swept;
  move_done(running_, swept.from_slots);
  for (const auto& sequence : swept.from_slots) {
    release_followers(*sequence);
    free_slot(sequence->slot());
    ledger_->stop(sequence->owner());
    waiting_.reorder(sequence->owner());
    ledger_->leave(sequence->owner());
  }
  waiting_.sweep(swept.others);
  move_done(parked_, swept.others);
  for (const auto& sequence : swept.others) ledger_->leave(sequence->owner());
  capacity_ = std::min(slots_, capacity_ + static_cast<int32_t>(swept.from_slots.size()));
  return swept;
}

}  // namespace corosrv
