// How many tokens of thoughts an answer may have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/pattern_matcher.h"
#include "base/utf8.h"
#include "model/types.h"

namespace corosrv {

// Watches an answer for thoughts, and says which tokens are to be drawn to end those that have spent their budget. Only
// an answer's first words can begin thoughts, and once they have ended no others begin.
class ThoughtBudget {
 public:
  enum class State { kBefore, kThinking, kEnding, kOver };

  explicit ThoughtBudget(const ThoughtLimit& limit);

  State state() const { return state_; }
  // The token that is to be drawn next; -1: any.
  Token wanted() const { return state_ == State::kEnding ? limit_.ending[n_ended_] : -1; }
  // How many of the next bytes are thoughts, the text that ends them included.
  size_t n_thoughts(std::string_view bytes) const;
  // Whether the prompt has begun the thoughts.
  bool is_begun_by_prompt() const { return !limit_.ending.empty() && limit_.opening.empty(); }
  // Thoughts may yet begin, or have more words of the model's.
  bool may_go_on() const { return !is_cut_ && (state_ == State::kBefore || state_ == State::kThinking); }
  // From here on nothing is left of the budget.
  void end();
  // The wanted token may not be drawn here: the thoughts end by themselves, or not at all.
  void give_up() { enter(State::kOver); }
  // A token was drawn, and adds these bytes to the text.
  void accept(std::string_view bytes);

 private:
  void enter(State state);
  void begin(std::string_view bytes);
  void think(std::string_view bytes);
  void end_if_spent();
  bool is_closed_by(std::string_view bytes);
  void decode(std::string_view bytes);

  const ThoughtLimit limit_;
  PatternMatcher closing_;
  Utf8Decoder decoder_;
  State state_;
  std::string begun_;  // of the opening
  int32_t n_spent_ = 0;
  bool is_cut_ = false;  // nothing is left, whatever was spent
  size_t n_ended_ = 0;   // tokens of the ending
};

}  // namespace corosrv
