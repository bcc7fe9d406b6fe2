// One generation: its state table, its tokens and its counters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "inbox.h"
#include "loop_stats.h"
#include "reader.h"
#include "sampler.h"
#include "stop_matcher.h"
#include "text_stream.h"
#include "types.h"

namespace corosrv {

// Owned by the scheduler and used by the decode thread alone. Writes to its reader exactly one terminal chunk, in
// finish() or, for a sequence that is dropped whatever the reason, in the destructor (I4).
class Sequence {
 public:
  enum class State { kWaiting, kPrefilling, kDecoding, kDone };

  // `vocabulary` and `stats` outlive the sequence. `context`: tokens that a slot holds.
  Sequence(Submission submission, const Vocabulary& vocabulary, int32_t context, corosrv_stats& stats);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  State state() const { return state_; }
  int32_t slot() const { return slot_; }
  Reader& reader() const { return *reader_; }

  // Tokens that the KV cache holds, and those that are known and not in it yet. One is pending while decoding.
  int32_t n_computed() const { return n_computed_; }
  int32_t n_pending() const { return static_cast<int32_t>(tokens_.size()) - n_computed_; }
  Token token(int32_t position) const { return tokens_[static_cast<size_t>(position)]; }

  // When it got its slot.
  Clock::time_point started() const { return started_; }

  // The reader is full: the sequence keeps its slot and is left out of the steps.
  bool is_paused() const { return is_paused_; }
  void set_paused(bool is_paused) { is_paused_ = is_paused; }

  // Moves; an assertion where the table has none.
  void start(int32_t slot, Clock::time_point now);  // waiting -> prefilling
  void computed(int32_t n_tokens);                  // these are in the KV cache now; prefilling -> decoding at the end
  void draw(float* logits, Clock::time_point now);  // the next token; -> done when it is the last
  void finish(Finish finish, const std::string& message = {});  // -> done; nothing when it is done already

 private:
  void enter(State state);
  void accept(Token token, Clock::time_point now);
  void emit(std::string text);
  bool is_at_limit() const;
  int32_t n_generated() const { return static_cast<int32_t>(tokens_.size()) - n_prompt_; }

  const std::shared_ptr<Reader> reader_;
  const Vocabulary& vocabulary_;
  corosrv_stats& stats_;
  const int32_t index_;
  const int32_t n_prompt_;
  const int32_t max_tokens_;
  const int32_t context_;

  State state_ = State::kWaiting;
  bool is_paused_ = false;
  int32_t slot_ = -1;
  std::vector<Token> tokens_;  // prompt, then generated
  int32_t n_computed_ = 0;
  int32_t n_unsent_ = 0;  // generated, and in no chunk yet

  Sampler sampler_;
  TextStream text_stream_;
  StopMatcher stop_matcher_;

  const Clock::time_point submitted_;
  Clock::time_point started_;
  Clock::time_point first_token_;
  Clock::time_point last_token_;
};

}  // namespace corosrv
