#include "loop/slot_memory.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "model/embedded_rows.h"

namespace corosrv {

namespace {

// Of somebody else's the same is said as of nothing.
bool is_empty_for(const SlotRequest& request, const std::vector<Token>& tokens, const SharingScope& scope) {
  return tokens.empty() || scope.owner != request.owner();
}

}  // namespace

SlotMemory::SlotMemory(Backend& backend, PrefixCache& cache, int32_t slots, bool shares_cells)
    : backend_(backend),
      cache_(cache),
      holds_(cache.limit_bytes() > 0 && !shares_cells),
      copies_late_(holds_ && backend.info().computes_aside),
      left_(static_cast<size_t>(slots)) {}

// What was computed stays for the next one that begins like it, unless it ended for a reason that may lie in the
// numbers.
void SlotMemory::note(const Sequence& sequence) {
  const int32_t slot = sequence.slot();
  Left& left = left_[static_cast<size_t>(slot)];
  if (left.is_in_slot) return;  // the sequence has not begun
  left = {};
  if (sequence.shares_prefix()) {
    left.tokens.assign(sequence.tokens().begin(), sequence.tokens().begin() + sequence.n_computed());
    left.scope = sequence.sharing_scope();
  }
  const bool is_sound = cache_.limit_bytes() > 0 && sequence.finished() != Finish::kError;
  const bool is_worth = is_sound && left.tokens.size() >= PrefixCache::kLeastTokens;
  left.is_in_slot = is_worth && holds_;
  left.is_copied = !is_worth || !copies_late_;
  if (is_worth && !copies_late_) keep(slot, left.tokens, left.scope);
  if (!left.is_in_slot) backend_.forget(slot, {});
}

bool SlotMemory::keep(int32_t slot, std::vector<Token> tokens, const SharingScope& scope) {
  if (cache_.covers(tokens, scope)) return true;
  if (!cache_.can_cut(tokens.size(), tokens.size())) return false;
  Snapshot snapshot = backend_.save(slot, cache_.limit_bytes());
  if (!snapshot.bytes) return false;
  cache_.keep(std::move(tokens), std::move(snapshot), scope);
  return true;
}

size_t SlotMemory::n_in_common(const Left& left, const Sequence& sequence) const {
  if (!left.is_in_slot || !sequence.shares_prefix() || left.scope != sequence.sharing_scope()) return 0;
  const size_t n_tokens = common_prefix(left.tokens, sequence.tokens());
  const int32_t n_kept = sequence.n_to_begin_with(n_tokens);
  return n_kept > 0 && backend_.can_resume(slot_of(left), sequence.extent(n_kept)) ? n_tokens : 0;
}

int32_t SlotMemory::continued_by(const Sequence& sequence, const std::vector<int32_t>& free_slots) const {
  int32_t best = -1;
  size_t most = 0;
  for (const int32_t slot : free_slots) {
    const Left& left = left_[static_cast<size_t>(slot)];
    const size_t n_tokens = n_in_common(left, sequence);
    if (n_tokens <= most || n_tokens < left.tokens.size()) continue;
    best = slot;
    most = n_tokens;
  }
  return best;
}

size_t SlotMemory::n_in_slot(const Sequence& sequence) const {
  return n_in_common(left_[static_cast<size_t>(sequence.slot())], sequence);
}

const SlotMemory::Left* SlotMemory::most_uncopied(const Sequence& sequence) const {
  const Left* best = nullptr;
  size_t most = 0;
  for (const Left& left : left_) {
    const size_t n_tokens = left.is_copied ? 0 : n_in_common(left, sequence);
    if (n_tokens <= most) continue;
    best = &left;
    most = n_tokens;
  }
  return best;
}

size_t SlotMemory::n_uncopied(const Sequence& sequence) const {
  const Left* const left = most_uncopied(sequence);
  return left == nullptr ? 0 : n_in_common(*left, sequence);
}

void SlotMemory::copy_uncopied(const Sequence& sequence) {
  if (const Left* const left = most_uncopied(sequence)) copy(slot_of(*left));
}

void SlotMemory::copy(int32_t slot) {
  Left& left = left_[static_cast<size_t>(slot)];
  if (!std::exchange(left.is_copied, true)) keep(slot, left.tokens, left.scope);
}

void SlotMemory::take_over(int32_t slot, Extent kept) {
  Left& left = left_[static_cast<size_t>(slot)];
  if (static_cast<size_t>(kept.n_tokens) < left.tokens.size()) copy(slot);
  left = {};
  backend_.forget(slot, kept);
}

void SlotMemory::release(int32_t slot) {
  Left& left = left_[static_cast<size_t>(slot)];
  if (!left.is_in_slot) return;
  copy(slot);
  left.is_in_slot = false;
  backend_.forget(slot, {});
}

void SlotMemory::clear() {
  for (int32_t slot = 0; slot < static_cast<int32_t>(left_.size()); ++slot) {
    if (left_[static_cast<size_t>(slot)].is_in_slot) backend_.forget(slot, {});
  }
  left_.assign(left_.size(), {});
}

void SlotMemory::run(SlotRequest& request) {
  try {
    request.answer(act(request));
  } catch (const std::exception& error) {
    request.answer(Status(StatusCode::kInternal, std::string("the slot could not be looked after: ") + error.what()));
  }
}

Status SlotMemory::act(SlotRequest& request) {
  if (cache_.limit_bytes() == 0) {
    return Status(StatusCode::kUnsupported,
                  "what slots compute is not kept here: the model cannot, or the cache is off");
  }
  release(request.slot());
  Left& left = left_[static_cast<size_t>(request.slot())];
  switch (request.action()) {
    case SlotRequest::Action::kSave:
      return save(request, left);
    case SlotRequest::Action::kRestore:
      return restore(request, left);
    case SlotRequest::Action::kErase:
      return erase(request, left);
  }
  return Status(StatusCode::kInvalid, "nobody knows this action");
}

Status SlotMemory::save(SlotRequest& request, const Left& left) {
  if (std::any_of(left.tokens.begin(), left.tokens.end(), is_row) && left.scope.owner == request.owner()) {
    return Status(StatusCode::kUnsupported, "slot " + std::to_string(request.slot()) +
                                                " holds embedding rows, which cannot be saved: they have no tokens");
  }
  SlotContent& content = request.content();
  if (!is_empty_for(request, left.tokens, left.scope)) content.snapshot = cache_.holding(left.tokens, left.scope);
  if (!content.snapshot) {
    return Status(StatusCode::kInvalid,
                  "slot " + std::to_string(request.slot()) + " holds nothing that could be saved");
  }
  content.tokens = left.tokens;
  content.adapters = left.scope.adapters;
  return Status::ok();
}

// The slot itself is where it is tried whether the model takes the snapshot: nothing else is in it.
Status SlotMemory::restore(SlotRequest& request, Left& left) {
  const SlotContent& content = request.content();
  const auto n_tokens = static_cast<int32_t>(content.tokens.size());
  if (!backend_.load(request.slot(), *content.snapshot, {n_tokens, n_tokens - 1})) {
    return Status(StatusCode::kInvalid, "the model cannot take this state");
  }
  backend_.forget(request.slot(), {});
  const SharingScope scope{request.owner(), content.adapters};
  if (!cache_.covers(content.tokens, scope)) cache_.keep(content.tokens, content.snapshot, scope);
  if (!cache_.covers(content.tokens, scope)) {
    return Status(StatusCode::kInvalid, "the state is larger than all that the prefix cache may keep, " +
                                            std::to_string(cache_.limit_bytes()) + " bytes");
  }
  left = {content.tokens, scope};
  return Status::ok();
}

Status SlotMemory::erase(SlotRequest& request, Left& left) {
  if (is_empty_for(request, left.tokens, left.scope)) return Status::ok();
  const bool was_held = cache_.forget(left.tokens, left.scope);
  if (was_held) request.content().tokens = std::move(left.tokens);
  left = {};
  return Status::ok();
}

}  // namespace corosrv
