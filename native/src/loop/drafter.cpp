#include "loop/drafter.h"

#include <algorithm>
#include <utility>

namespace corosrv {

namespace {

// Tokens that have to be alike: an answer is more likely to go on with what is expected of it than with what it said.
constexpr size_t kPredictedMatch = 2;
constexpr size_t kOwnMatch = 3;

constexpr double kPredictedChance = 0.8;
constexpr double kOwnChance = 0.5;

constexpr size_t kLeastTable = 64;
constexpr int kProbes = 8;

}  // namespace

void DraftSource::follow(const std::vector<Token>& text, size_t n_known, const std::vector<Token>& tokens,
                         size_t last) {
  index(text, n_known);
  if (place_ < n_known && text[place_] == tokens[last]) {
    ++place_;
  } else {
    place_ = find(text, tokens, last + 1);
  }
}

// All places that something is known to follow; the end of the sequence itself is none.
void DraftSource::index(const std::vector<Token>& text, size_t n_known) {
  if (2 * n_known > places_.size()) {
    size_t size = std::max(kLeastTable, places_.size());
    while (size < 2 * n_known) size *= 2;
    places_.assign(size, 0);
    n_indexed_ = 0;
  }
  for (size_t place = std::max(n_indexed_, n_match_); place < n_known; ++place) {
    places_[entry_of(text, &text[place - n_match_])] = static_cast<int32_t>(place);
  }
  n_indexed_ = n_known;
}

size_t DraftSource::find(const std::vector<Token>& text, const std::vector<Token>& tokens, size_t end) const {
  if (end < n_match_ || places_.empty()) return kNowhere;
  const Token* const last = &tokens[end - n_match_];
  const int32_t place = places_[entry_of(text, last)];
  return place > 0 && is_behind(text, place, last) ? static_cast<size_t>(place) : kNowhere;
}

bool DraftSource::is_behind(const std::vector<Token>& text, int32_t place, const Token* first) const {
  return std::equal(first, first + n_match_, &text[static_cast<size_t>(place) - n_match_]);
}

// The entry of the place behind these tokens, or the one that it would get: perhaps that of others.
size_t DraftSource::entry_of(const std::vector<Token>& text, const Token* first) const {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < n_match_; ++i) hash = (hash ^ static_cast<uint32_t>(first[i])) * 16777619u;
  const size_t mask = places_.size() - 1;
  size_t entry = (hash ^ (hash >> 15)) & mask;
  for (int i = 1; i < kProbes && places_[entry] > 0 && !is_behind(text, places_[entry], first); ++i) {
    entry = (entry + 1) & mask;
  }
  return entry;
}

Drafter::Drafter(std::vector<Token> prediction, size_t n_prompt)
    : expected_(std::move(prediction)),
      prediction_(kPredictedMatch, kPredictedChance, true),
      own_(kOwnMatch, kOwnChance, false),
      n_answered_(n_prompt) {}

Prospect Drafter::look(const std::vector<Token>& tokens, int32_t most) {
  for (; n_answered_ < tokens.size(); ++n_answered_) {
    if (!expected_.empty()) prediction_.follow(expected_, expected_.size(), tokens, n_answered_);
  }
  for (; n_seen_ < tokens.size(); ++n_seen_) own_.follow(tokens, n_seen_ + 1, tokens, n_seen_);
  if (follows_prediction()) {
    const size_t n_left = expected_.size() - prediction_.place();
    return {prediction_.hits.chance(), std::min(most, static_cast<int32_t>(n_left))};
  }
  return own_.place() < tokens.size() ? Prospect{own_.hits.chance(), most} : Prospect();
}

// Own tokens go on behind their end with the guesses themselves: a text that repeats itself may do so for long.
std::vector<Token> Drafter::guess(const std::vector<Token>& tokens, int32_t n_tokens) const {
  const std::vector<Token>& text = follows_prediction() ? expected_ : tokens;
  std::vector<Token> guesses;
  for (size_t place = follows_prediction() ? prediction_.place() : own_.place();
       guesses.size() < static_cast<size_t>(n_tokens); ++place) {
    guesses.push_back(place < text.size() ? text[place] : guesses[place - text.size()]);
  }
  return guesses;
}

}  // namespace corosrv
