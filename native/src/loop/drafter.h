// Guesses how a sequence goes on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/types.h"

namespace corosrv {

// How good a sequence's next guesses are.
struct Prospect {
  double chance = 0;  // that one is right when those before it were
  int32_t n_tokens = 0;
};

// How many of some guesses come true, of which the last ones count most.
class HitRate {
 public:
  // `chance`: of a guess, before any was tried.
  explicit HitRate(double chance) : prior_(chance) {}

  double chance() const { return (n_right_ + prior_ * kTrust) / (n_tried_ + kTrust); }
  void learn(bool is_right) {
    n_right_ = kMemory * n_right_ + (is_right ? 1 : 0);
    n_tried_ = kMemory * n_tried_ + 1;
  }
  // Of so many guesses in a row the first were right; those behind the first wrong one say nothing.
  void learn(size_t n_tried, size_t n_right) {
    for (size_t i = 0; i < std::min(n_tried, n_right + 1); ++i) learn(i < n_right);
  }
  // A guess was not tried: what is known of them grows old, so that they are tried again some time.
  void pass_over() { fade(kPassing); }
  // What is known is of guesses for somebody else.
  void begin_anew() { fade(kOthers); }

 private:
  void fade(double rest) {
    n_right_ *= rest;
    n_tried_ *= rest;
  }

  // Guesses that weigh as much as the chance before any was tried.
  static constexpr double kTrust = 2;
  // What is left of a guess's weight after each further one, after each that was not tried, and for somebody else.
  static constexpr double kMemory = 0.95;
  static constexpr double kPassing = 0.99;
  static constexpr double kOthers = 0.03;

  double prior_;
  double n_right_ = 0;
  double n_tried_ = 0;
};

// A text that a sequence may repeat, and the place in it where the sequence is. Places are found by the last tokens, in
// a table of places that is never more than half full and is looked through at a few entries at most: a token costs the
// same however long the text is.
class DraftSource {
 public:
  // `n_match`: tokens that have to be alike for a place to be found. `chance`: of a guess, before any was tried.
  DraftSource(size_t n_match, double chance, bool is_at_begin) : hits(chance), n_match_(n_match) {
    if (is_at_begin) place_ = 0;
  }

  // The sequence's tokens up to the one at `last` are known; of the text, `n_known` tokens.
  void follow(const std::vector<Token>& text, size_t n_known, const std::vector<Token>& tokens, size_t last);

  // Where the next token stands in the text, or kNowhere.
  size_t place() const { return place_; }

  static constexpr size_t kNowhere = SIZE_MAX;

  HitRate hits;  // of its guesses

 private:
  void index(const std::vector<Token>& text, size_t n_known);
  size_t find(const std::vector<Token>& text, const std::vector<Token>& tokens, size_t end) const;
  bool is_behind(const std::vector<Token>& text, int32_t place, const Token* first) const;
  size_t entry_of(const std::vector<Token>& text, const Token* first) const;

  const size_t n_match_;
  size_t place_ = kNowhere;
  size_t n_indexed_ = 0;
  std::vector<int32_t> places_;  // by the hash of the tokens before them; 0: none
};

// One sequence's. It guesses that the sequence goes on as a text that it was told to expect or, where it is nowhere in
// that, as its own tokens went on when the last few of them came before. Pure, and used by the decode thread alone.
class Drafter {
 public:
  // `prediction`: the text that is expected; may be empty. `n_prompt`: tokens of the sequence before the answer.
  Drafter(std::vector<Token> prediction, size_t n_prompt);

  // `tokens`: of the sequence, which only grows. At most `most` guesses.
  Prospect look(const std::vector<Token>& tokens, int32_t most);
  // The next guesses, no more than look() has found.
  std::vector<Token> guess(const std::vector<Token>& tokens, int32_t n_tokens) const;

  // So many of the last guesses were tried, and the first of them were right.
  void learn(size_t n_tried, size_t n_right) { best().hits.learn(n_tried, n_right); }
  void pass_over() { best().hits.pass_over(); }

 private:
  bool follows_prediction() const { return prediction_.place() < expected_.size(); }
  DraftSource& best() { return follows_prediction() ? prediction_ : own_; }

  const std::vector<Token> expected_;
  DraftSource prediction_;
  DraftSource own_;
  size_t n_answered_;  // tokens that prediction_ has followed, and of the prompt
  size_t n_seen_ = 0;  // tokens that own_ has followed
};

}  // namespace corosrv
