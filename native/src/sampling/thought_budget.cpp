#include "sampling/thought_budget.h"

#include <algorithm>
#include <cassert>
#include <vector>

namespace corosrv {

namespace {

using State = ThoughtBudget::State;

// The state table: the states follow each other, and any of them may be the last before the end.
[[maybe_unused]] bool may_move(State from, State to) {
  switch (from) {
    case State::kBefore:
      return to == State::kThinking || to == State::kOver;
    case State::kThinking:
      return to == State::kEnding || to == State::kOver;
    case State::kEnding:
      return to == State::kOver;
    case State::kOver:
      return false;
  }
  return false;
}

constexpr std::string_view kSpace = " \t\r\n";

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

std::vector<std::string> closings(const ThoughtLimit& limit) {
  if (limit.ending.empty()) return {};
  return {limit.closing};
}

State first_state(const ThoughtLimit& limit) {
  if (limit.ending.empty()) return State::kOver;
  return limit.opening.empty() ? State::kThinking : State::kBefore;
}

}  // namespace

ThoughtBudget::ThoughtBudget(const ThoughtLimit& limit)
    : limit_(limit), closing_(closings(limit)), state_(first_state(limit)) {
  if (state_ == State::kThinking) end_if_spent();
}

void ThoughtBudget::enter(State state) {
  assert(may_move(state_, state));
  state_ = state;
}

void ThoughtBudget::accept(std::string_view bytes) {
  switch (state_) {
    case State::kBefore:
      return begin(bytes);
    case State::kThinking:
      return think(bytes);
    case State::kEnding:
      if (++n_ended_ == limit_.ending.size()) enter(State::kOver);
      return;
    case State::kOver:
      return;
  }
}

void ThoughtBudget::end() {
  is_cut_ = true;
  if (state_ == State::kThinking) end_if_spent();
}

size_t ThoughtBudget::n_thoughts(std::string_view bytes) const {
  if (state_ == State::kEnding) return bytes.size();
  if (state_ != State::kThinking) return 0;
  PatternMatcher ahead = closing_;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (ahead.read(bytes[i]) != nullptr) return i + 1;
  }
  return bytes.size();
}

void ThoughtBudget::begin(std::string_view bytes) {
  begun_ += bytes;
  const size_t space = std::min(begun_.find_first_not_of(kSpace), begun_.size());
  const std::string_view text = std::string_view(begun_).substr(space);
  if (starts_with(limit_.opening, text) && text.size() < limit_.opening.size()) return;
  if (!starts_with(text, limit_.opening)) return enter(State::kOver);
  enter(State::kThinking);
  const std::string_view behind = text.substr(limit_.opening.size());
  if (behind.empty()) {
    end_if_spent();
  } else {
    think(behind);
  }
}

void ThoughtBudget::think(std::string_view bytes) {
  if (is_closed_by(bytes)) return enter(State::kOver);
  decode(bytes);
  ++n_spent_;
  end_if_spent();
}

// A character that has been begun is not cut off.
void ThoughtBudget::end_if_spent() {
  if ((is_cut_ || n_spent_ >= limit_.max_tokens) && decoder_.is_between()) enter(State::kEnding);
}

bool ThoughtBudget::is_closed_by(std::string_view bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [this](char byte) { return closing_.read(byte) != nullptr; });
}

void ThoughtBudget::decode(std::string_view bytes) {
  for (const char byte : bytes) {
    if (decoder_.push(static_cast<uint8_t>(byte)) == Utf8Decoder::Part::kInvalid) decoder_ = Utf8Decoder();
  }
}

}  // namespace corosrv
