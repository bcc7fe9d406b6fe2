// One generation: its state table, its tokens and its counters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "inbox.h"
#include "loop_stats.h"
#include "pooler.h"
#include "reader.h"
#include "sampler.h"
#include "signals.h"
#include "stop_matcher.h"
#include "text_stream.h"
#include "types.h"

namespace corosrv {

// Owned by the scheduler and used by the decode thread alone. Writes to its reader exactly one terminal chunk, in
// finish() or, for a sequence that is dropped whatever the reason, in the destructor (I4).
class Sequence {
 public:
  // kStarting: has a slot, and may yet begin from a prefix that another sequence computes.
  enum class State { kWaiting, kStarting, kPrefilling, kDecoding, kDone };

  // `vocabulary`, `signals` and `stats` outlive the sequence. `context`: tokens that a slot holds.
  Sequence(Submission submission, const Vocabulary& vocabulary, int32_t context, Signals& signals,
           corosrv_stats& stats);
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
  // Prompt, then generated.
  const std::vector<Token>& tokens() const { return tokens_; }
  bool shares_prefix() const { return shares_prefix_; }
  // It is to become a vector; no token is generated.
  bool wants_vectors() const { return pooler_ != nullptr; }
  Finish finished() const { return finish_; }

  // When it first got a slot.
  Clock::time_point started() const { return started_; }

  // The reader is full: the sequence is left out of the steps.
  bool is_paused() const { return is_paused_; }
  void set_paused(bool is_paused) { is_paused_ = is_paused; }

  // While kStarting: the running sequence that is to compute its first n_led() tokens, or null.
  const Sequence* leader() const { return leader_; }
  int32_t n_led() const { return n_led_; }
  void follow(const Sequence* leader, int32_t n_tokens) {
    leader_ = leader;
    n_led_ = n_tokens;
  }

  // Moves; an assertion where the table has none.
  void start(int32_t slot, Clock::time_point now);  // waiting -> starting
  void begin(int32_t n_held);                       // its slot holds these tokens already; starting -> prefilling
  void computed(int32_t n_tokens);                  // these are in the KV cache now; prefilling -> decoding at the end
  void collect(const float* vector);                // of the next token that is to be computed()
  void preempt();                                   // gives up its slot and what that holds; -> waiting
  void finish(Finish finish, const std::string& message = {});  // -> done; nothing when it is done already

  // The slot's content now lies in another slot.
  void move(int32_t slot) { slot_ = slot; }

  // The next token is drawn in two parts: choose() touches this sequence alone and throws nothing, so that different
  // ones may choose in different threads at once; take() then tells the reader and the counters, and may end it.
  void choose(float* logits);
  void take(Clock::time_point now);

 private:
  void enter(State state);
  void accept(Token token, Clock::time_point now);
  void finish_without_token();
  void emit(std::string text);
  bool is_at_limit() const;
  bool was_started() const { return n_read_ > 0; }
  int32_t n_generated() const { return static_cast<int32_t>(tokens_.size()) - n_prompt_; }

  const std::shared_ptr<Reader> reader_;
  const Vocabulary& vocabulary_;
  Signals& signals_;
  corosrv_stats& stats_;
  const int32_t index_;
  const int32_t n_prompt_;
  const int32_t max_tokens_;
  const int32_t context_;
  const bool shares_prefix_;

  State state_ = State::kWaiting;
  Finish finish_ = Finish::kUnfinished;
  bool is_paused_ = false;
  const Sequence* leader_ = nullptr;
  int32_t n_led_ = 0;
  int32_t slot_ = -1;
  std::vector<Token> tokens_;
  Token chosen_ = -1;
  std::string failure_;  // of choose(), with an exception
  int32_t n_computed_ = 0;
  int32_t n_read_ = 0;    // of the prompt, at any time: a preempted sequence reads it again
  int32_t n_cached_ = 0;  // of the prompt, not computed for it
  int32_t n_unsent_ = 0;  // generated, and in no chunk yet

  Sampler sampler_;
  TextStream text_stream_;
  StopMatcher stop_matcher_;
  const std::unique_ptr<Pooler> pooler_;  // null: generates

  const Clock::time_point submitted_;
  Clock::time_point started_;
  Clock::time_point first_token_;
  Clock::time_point last_token_;
};

}  // namespace corosrv
