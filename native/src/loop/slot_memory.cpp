#include "loop/slot_memory.h"

#include <exception>
#include <string>
#include <utility>

namespace corosrv {

namespace {

// Of somebody else's the same is said as of nothing.
bool is_empty_for(const SlotErrand& errand, const std::vector<Token>& tokens, const Kin& kin) {
  return tokens.empty() || kin.owner != errand.owner();
}

}  // namespace

SlotMemory::SlotMemory(Backend& backend, PrefixCache& cache, int32_t slots)
    : backend_(backend), cache_(cache), left_(static_cast<size_t>(slots)) {}

void SlotMemory::note(const Sequence& sequence) {
  Left& left = left_[static_cast<size_t>(sequence.slot())];
  left = {};
  if (!sequence.shares_prefix()) return;
  left.tokens.assign(sequence.tokens().begin(), sequence.tokens().begin() + sequence.n_computed());
  left.kin = sequence.kin();
}

void SlotMemory::run(SlotErrand& errand) {
  try {
    errand.answer(act(errand));
  } catch (const std::exception& error) {
    errand.answer(Status(COROSRV_INTERNAL, std::string("the slot could not be looked after: ") + error.what()));
  }
}

Status SlotMemory::act(SlotErrand& errand) {
  if (cache_.limit_bytes() == 0) {
    return Status(COROSRV_UNSUPPORTED, "what slots compute is not kept here: the model cannot, or the cache is off");
  }
  Left& left = left_[static_cast<size_t>(errand.slot())];
  switch (errand.action()) {
    case SlotErrand::Action::kSave:
      return save(errand, left);
    case SlotErrand::Action::kRestore:
      return restore(errand, left);
    case SlotErrand::Action::kErase:
      return erase(errand, left);
  }
  return Status(COROSRV_INVALID, "nobody knows this action");
}

Status SlotMemory::save(SlotErrand& errand, const Left& left) {
  SlotContent& content = errand.content();
  if (!is_empty_for(errand, left.tokens, left.kin)) content.snapshot = cache_.holding(left.tokens, left.kin);
  if (!content.snapshot) {
    return Status(COROSRV_INVALID, "slot " + std::to_string(errand.slot()) + " holds nothing that could be saved");
  }
  content.tokens = left.tokens;
  content.adapters = left.kin.adapters;
  return Status::ok();
}

// The slot itself is where it is tried whether the model takes the snapshot: nothing else is in it.
Status SlotMemory::restore(SlotErrand& errand, Left& left) {
  const SlotContent& content = errand.content();
  if (!backend_.load(errand.slot(), *content.snapshot, static_cast<int32_t>(content.tokens.size()))) {
    return Status(COROSRV_INVALID, "the model cannot take this state");
  }
  backend_.forget(errand.slot(), 0);
  const Kin kin{errand.owner(), content.adapters};
  if (!cache_.covers(content.tokens, kin)) cache_.keep(content.tokens, content.snapshot, kin);
  if (!cache_.covers(content.tokens, kin)) {
    return Status(COROSRV_INVALID, "the state is larger than all that the prefix cache may keep, " +
                                       std::to_string(cache_.limit_bytes()) + " bytes");
  }
  left = {content.tokens, kin};
  return Status::ok();
}

Status SlotMemory::erase(SlotErrand& errand, Left& left) {
  if (is_empty_for(errand, left.tokens, left.kin)) return Status::ok();
  const bool was_held = cache_.forget(left.tokens, left.kin);
  if (was_held) errand.content().tokens = std::move(left.tokens);
  left = {};
  return Status::ok();
}

}  // namespace corosrv
