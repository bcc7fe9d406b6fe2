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

SlotMemory::SlotMemory(Backend& backend, PrefixCache& cache, int32_t slots)
    : backend_(backend), cache_(cache), left_(static_cast<size_t>(slots)) {}

void SlotMemory::note(const Sequence& sequence) {
  Left& left = left_[static_cast<size_t>(sequence.slot())];
  left = {};
  if (!sequence.shares_prefix()) return;
  left.tokens.assign(sequence.tokens().begin(), sequence.tokens().begin() + sequence.n_computed());
  left.scope = sequence.sharing_scope();
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
