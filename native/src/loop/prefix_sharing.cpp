#include "loop/prefix_sharing.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace corosrv {

namespace {

constexpr size_t kAnySize = std::numeric_limits<size_t>::max();

}  // namespace

PrefixSharing::PrefixSharing(Backend& backend, PrefixCache& cache, SlotMemory& memory)
    : backend_(backend), cache_(cache), memory_(memory) {}

bool PrefixSharing::may_share(const Sequence& sequence) const {
  return cache_.limit_bytes() > 0 && sequence.shares_prefix();
}

void PrefixSharing::begin(Scheduler& scheduler) {
  scheduler.for_each_running([&](Sequence& sequence) {
    if (sequence.is_to_be_copied()) {
      keep(sequence);
      sequence.copy_at(0);
    }
    if (sequence.state() != Sequence::State::kStarting) return;
    if (sequence.leader() != nullptr && sequence.leader()->is_paused()) sequence.follow(nullptr, 0);
    if (sequence.leader() == nullptr && may_share(sequence)) find_leader(scheduler, sequence);
    if (sequence.leader() != nullptr) {
      if (sequence.leader()->n_computed() < sequence.n_led()) return;
      keep(*sequence.leader());
    }
    begin(sequence);
  });
}

void PrefixSharing::find_leader(const Scheduler& scheduler, Sequence& sequence) {
  size_t n_lost = 0;
  const Scheduler::Leader found = scheduler.leader_of(sequence, [&](const Sequence& other, size_t n_tokens) {
    const auto n_led = static_cast<size_t>(sequence.n_to_begin_with(n_tokens));
    if (cache_.can_cut(std::max(n_led, static_cast<size_t>(other.n_computed())), n_led)) return true;
    n_lost = std::max(n_lost, n_led);
    return false;
  });
  leave_copy(sequence, n_lost, 0);
  const auto n_led = static_cast<size_t>(sequence.n_to_begin_with(found.n_tokens));
  if (n_led < PrefixCache::kLeastTokens) return;  // and no need to ask the cache
  const size_t n_known = std::max({cache_.find(sequence.tokens(), sequence.sharing_scope()).n_tokens,
                                   memory_.n_in_slot(sequence), memory_.n_uncopied(sequence)});
  if (n_led < n_known + PrefixCache::kLeastTokens) return;
  sequence.follow(found.sequence, static_cast<int32_t>(n_led));
}

void PrefixSharing::begin(Sequence& sequence) {
  if (may_share(sequence) && begin_in_slot(sequence)) return;
  memory_.release(sequence.slot());
  const PrefixCache::Match match =
      may_share(sequence) ? cache_.find(sequence.tokens(), sequence.sharing_scope()) : PrefixCache::Match();
  const int32_t n_tokens = sequence.n_to_begin_with(match.n_tokens);
  const bool is_held = n_tokens > 0 && backend_.load(sequence.slot(), *match.snapshot, sequence.extent(n_tokens));
  sequence.begin(is_held ? n_tokens : 0);
}

// Where that is worth as much as what the cache has, once it has all that other slots hold of the sequence.
bool PrefixSharing::begin_in_slot(Sequence& sequence) {
  const auto n_in_slot = static_cast<size_t>(sequence.n_to_begin_with(memory_.n_in_slot(sequence)));
  PrefixCache::Match match = cache_.find(sequence.tokens(), sequence.sharing_scope());
  if (memory_.n_uncopied(sequence) >= std::max(n_in_slot, match.n_tokens) + PrefixCache::kLeastTokens) {
    memory_.copy_uncopied(sequence);
    match = cache_.find(sequence.tokens(), sequence.sharing_scope());
  }
  leave_copy(sequence, match.n_lost, std::max(n_in_slot, match.n_tokens));
  const auto n_tokens = static_cast<int32_t>(n_in_slot);
  if (n_in_slot < PrefixCache::kLeastTokens || n_tokens < sequence.n_to_begin_with(match.n_tokens)) return false;
  memory_.take_over(sequence.slot(), sequence.extent(n_tokens));
  sequence.begin(n_tokens);
  return true;
}

// What others have in common with the sequence, and cannot be copied from them any more, it computes again: its own
// copy is for those that come next.
void PrefixSharing::leave_copy(Sequence& sequence, size_t n_lost, size_t n_known) const {
  const int32_t n_tokens = sequence.n_to_begin_with(n_lost);
  const auto n_copied = static_cast<size_t>(n_tokens);
  if (n_copied < n_known + PrefixCache::kLeastTokens || !cache_.can_cut(n_copied, n_copied)) return;
  if (n_tokens > sequence.n_to_copy()) sequence.copy_at(n_tokens);
}

bool PrefixSharing::keep(const Sequence& sequence) {
  if (!may_share(sequence) || static_cast<size_t>(sequence.n_computed()) < PrefixCache::kLeastTokens) return false;
  const auto first = sequence.tokens().begin();
  return memory_.keep(sequence.slot(), {first, first + sequence.n_computed()}, sequence.sharing_scope());
}

bool PrefixSharing::copy(const Sequence& sequence, int32_t slot) {
  const auto n_tokens = static_cast<size_t>(sequence.n_computed());
  if (!cache_.can_cut(n_tokens, n_tokens)) return false;
  const Snapshot snapshot = backend_.save(sequence.slot(), kAnySize);
  return snapshot.bytes && backend_.load(slot, snapshot, sequence.extent(sequence.n_computed()));
}

void PrefixSharing::close_gaps(Scheduler& scheduler) {
  if (!backend_.has_snapshots()) return;
  while (Sequence* sequence = scheduler.above_gap()) {
    const int32_t slot = scheduler.slot_of_gap();
    memory_.release(slot);
    if (sequence->n_computed() > 0 && !copy(*sequence, slot)) return;
    memory_.release(sequence->slot());
    backend_.forget(sequence->slot(), {});
    scheduler.move(*sequence, slot);
  }
}

}  // namespace corosrv
