// How far a sequence is: its tokens, what was computed of them, and when.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/types.h"

namespace corosrv {

// Counts and times; decides nothing. Used by the decode thread alone.
class Progress {
 public:
  // `earlier`: tokens that an earlier engine has generated.
  Progress(std::vector<Token> prompt, const std::vector<Token>& earlier, Clock::time_point submitted);

  // Prompt, then generated.
  const std::vector<Token>& tokens() const { return tokens_; }
  Token token(int32_t position) const { return tokens_[static_cast<size_t>(position)]; }
  int32_t n_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t n_prompt() const { return n_prompt_; }
  int32_t n_generated() const { return n_generated_; }
  // Of these, those that were drawn here.
  int32_t n_drawn() const { return n_generated_ - n_earlier_; }
  // Tokens that were dropped in the midst: with any, tokens() are no longer what the model has seen.
  int32_t n_dropped() const { return n_dropped_; }

  // Tokens that the KV cache holds, and those that are known and not in it yet.
  int32_t n_computed() const { return n_computed_; }
  int32_t n_pending() const { return n_tokens() - n_computed_; }
  // Tokens of the prompt that were in the KV cache at any time: a preempted sequence reads them again.
  int32_t n_read() const { return n_read_; }
  // Tokens of the prompt that were not computed for this sequence.
  int32_t n_cached() const { return n_cached_; }
  bool has_begun() const { return n_read_ > 0; }
  // Guesses that were computed, and those of them that came true.
  int32_t n_drafted() const { return n_drafted_; }
  int32_t n_accepted() const { return n_accepted_; }

  // When it first got a slot.
  Clock::time_point started() const { return started_; }
  void start(Clock::time_point now) { started_ = now; }
  Clock::time_point last_token() const { return last_token_; }
  double seconds_of_generating(Clock::time_point now) const { return seconds(now - first_token_ - absent_); }
  // It had no slot for so long, for the sake of others.
  void add_absence(Clock::duration absence) {
    if (n_drawn() > 0) absent_ += absence;
  }
  // From the slot to the first token, or to now where there is none; 0 before anything was computed.
  double prompt_ms() const;
  // From the first token to the last so far.
  double decode_ms() const;
  // Its part of the time of each step.
  double compute_ms() const { return 1000 * charged_s_; }
  void charge(double seconds) { charged_s_ += seconds; }

  // The slot holds these tokens already. Returns how many of them count as cached: none when it begins again.
  int32_t begin(int32_t n_held);
  // So many more tokens are in the KV cache. Returns how many of the prompt were read for the first time.
  int32_t add_computed(int32_t n_tokens);
  // The KV cache holds no more than these tokens any more.
  void rewind(int32_t n_held) { n_computed_ = n_held; }
  // These tokens are in neither the sequence nor the KV cache any more.
  void drop(Cut cut);
  // A token was drawn.
  void add(Token token, Clock::time_point now);
  void add_guesses(int32_t n_drafted, int32_t n_accepted) {
    n_drafted_ += n_drafted;
    n_accepted_ += n_accepted;
  }

 private:
  const int32_t n_prompt_;
  const int32_t n_earlier_;
  std::vector<Token> tokens_;
  int32_t n_computed_ = 0;
  int32_t n_generated_;
  int32_t n_dropped_ = 0;
  int32_t n_read_ = 0;
  int32_t n_cached_ = 0;
  double charged_s_ = 0;
  int32_t n_drafted_ = 0;
  int32_t n_accepted_ = 0;
  Clock::time_point started_;
  Clock::time_point first_token_;
  Clock::time_point last_token_;
  Clock::duration absent_{};
};

}  // namespace corosrv
