// DRY, "don't repeat yourself": penalties for tokens that would go on with a repetition.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/backend.h"
#include "sampling/stage.h"

namespace corosrv {

// Texts that end a repetition, as tokens of one vocabulary: made once for a list of texts, which takes milliseconds,
// and never changed.
class DryBreakers {
 public:
  // Of a breaker, and of the tokens that its rest may take.
  static constexpr size_t kMostBytes = 40;
  static constexpr size_t kMostTokens = 20;

  DryBreakers(const std::vector<std::string>& texts, const Vocabulary& vocabulary);

  // The token has a whole breaker in it.
  bool is_breaker(Token token) const { return is_breaker_[static_cast<size_t>(token)]; }
  // How many tokens behind this one belong to a breaker that it begins (0: it has a whole one in it), the longest of
  // those that go on as `following` says, which is given the number of a token behind; -1 when there is none.
  template <typename Following>
  int32_t longest(Token token, size_t n_following, Following following) const;

 private:
  void add_rest(Token token, const std::string& rest, const Vocabulary& vocabulary);

  std::vector<bool> is_breaker_;                        // by token
  std::vector<std::pair<Token, uint32_t>> beginnings_;  // in order: a token that a breaker begins in, and its rest
  std::vector<std::vector<Token>> rests_;
};

// Whoever would make a repetition of the text's last tokens longer, beyond `allowed_length`, loses multiplier *
// base^(length - allowed_length). Of texts that a breaker ends only what is behind it counts.
class Dry final : public SparseStage {
 public:
  Dry(const Sampling& sampling, int32_t context);

  static bool is_on(const Sampling& sampling) {
    return sampling.dry_multiplier != 0 && sampling.dry_base >= 1 && sampling.dry_penalty_last_n != 0;
  }

  void change(Logits& logits) override;
  bool may_raise() const override { return !(multiplier_ >= 0); }
  void accept(Token token) override;

 private:
  Token newest(size_t i) const { return window_[(newest_ + window_.size() - i) % window_.size()]; }
  size_t longest_repetition() const;
  float penalty(size_t length) const;

  const float multiplier_;
  const float base_;
  const size_t allowed_length_;
  const size_t size_;
  const std::shared_ptr<const DryBreakers> breakers_;  // null: none
  std::vector<Token> window_;                          // a ring once it is full
  size_t newest_ = 0;                                  // in window_
};

template <typename Following>
int32_t DryBreakers::longest(Token token, size_t n_following, Following following) const {
  int32_t found = is_breaker(token) ? 0 : -1;
  auto beginning = std::lower_bound(beginnings_.begin(), beginnings_.end(), std::pair<Token, uint32_t>(token, 0));
  for (; beginning != beginnings_.end() && beginning->first == token; ++beginning) {
    const std::vector<Token>& rest = rests_[beginning->second];
    const auto size = static_cast<int32_t>(rest.size());
    if (size <= found || rest.size() > n_following) continue;
    size_t n_same = 0;
    while (n_same < rest.size() && rest[n_same] == following(n_same)) ++n_same;
    if (n_same == rest.size()) found = size;
  }
  return found;
}

}  // namespace corosrv
