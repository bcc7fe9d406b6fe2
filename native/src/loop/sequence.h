// One generation: its state table, its tokens and its counters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "handover/inbox.h"
#include "handover/reader.h"
#include "handover/signals.h"
#include "loop/loop_stats.h"
#include "loop/pooler.h"
#include "loop/slot_status.h"
#include "model/backend.h"
#include "model/types.h"
#include "sampling/sampler.h"
#include "text/answer_text.h"

namespace corosrv {

// Owned by the scheduler and used by the decode thread alone. Writes to its reader exactly one terminal chunk, in
// finish() or, for a sequence that is dropped whatever the reason, in the destructor (I4).
class Sequence {
 public:
  // kStarting: has a slot, and may yet begin from a prefix that another sequence computes.
  enum class State { kWaiting, kStarting, kPrefilling, kDecoding, kDone };

  // `vocabulary`, `signals` and `stats` outlive the sequence. `context`: tokens that a slot holds.
  Sequence(Submission submission, const Vocabulary& vocabulary, int32_t context, Signals& signals, LoopStats& stats);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  State state() const { return state_; }
  int32_t slot() const { return slot_; }
  // Where it has to run, or -1.
  int32_t wanted_slot() const { return wanted_slot_; }
  // What its slot shows of it.
  SlotStatus describe() const;
  Reader& reader() const { return *reader_; }

  // Tokens that the KV cache holds, and those that are known and not in it yet. One is pending while decoding.
  int32_t n_computed() const { return n_computed_; }
  int32_t n_pending() const { return n_tokens() - n_computed_; }
  Token token(int32_t position) const { return tokens_[static_cast<size_t>(position)]; }
  // Prompt, then generated.
  const std::vector<Token>& tokens() const { return tokens_; }
  bool shares_prefix() const { return shares_prefix_; }
  const SharingScope& sharing_scope() const { return sharing_scope_; }  // with whom alone
  // It is to become a vector; no token is generated.
  bool wants_vectors() const { return pooler_ != nullptr; }
  bool scores_prompt() const { return scores_prompt_; }
  Finish finished() const { return finish_; }

  Clock::time_point submitted() const { return submitted_; }
  bool has_had_slot() const { return last_slot_ >= 0; }
  // When it first got a slot.
  Clock::time_point started() const { return started_; }

  // The reader is full: the sequence is left out of the steps.
  bool is_paused() const { return is_paused_; }
  void set_paused(bool is_paused) {
    if (is_paused && !is_paused_) paused_ = Clock::now();
    is_paused_ = is_paused;
  }
  // When it was paused last.
  Clock::time_point paused() const { return paused_; }

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
  // -> done; nothing when it is done already. `code`, a constant, tells programs of an error.
  void finish(Finish finish, const std::string& message = {}, const char* code = "");

  // The slot's content now lies in another slot.
  void move(int32_t slot) { slot_ = last_slot_ = slot; }

  // Whether what follows a pending token is to be told: it is drawn, or it is a token of the prompt that is scored.
  bool wants_logits(int32_t position) const { return position + 1 == n_tokens() || is_scored(position); }
  bool is_scored(int32_t position) const {
    return scores_prompt_ && position + 1 >= n_scored_ && position + 1 < n_prompt_;
  }
  // How likely the prompt's next token was, by the logits behind this one. Any thread, while the sequence stands still.
  TokenList score(int32_t position, const float* logits) const;
  // The scores of the prompt's next tokens come in order, before computed() sends them.
  void tell_score(const TokenList& told);

  // The next token is drawn in two parts: choose() touches this sequence alone and throws nothing, so that different
  // ones may choose in different threads at once; take() then tells the reader and the counters, and may end it.
  void choose(float* logits);
  void take(Clock::time_point now);

 private:
  void enter(State state);
  void accept(Token token, Clock::time_point now);
  void finish_without_token();
  void emit(std::string text);
  Chunk make_chunk();
  void count(const Chunk& last);
  bool is_at_limit() const;
  bool was_started() const { return n_read_ > 0; }
  int32_t n_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t n_generated() const { return n_tokens() - n_prompt_; }

  const std::shared_ptr<Reader> reader_;
  const Vocabulary& vocabulary_;
  Signals& signals_;
  LoopStats& stats_;
  const int32_t index_;
  const int32_t n_prompt_;
  const int32_t max_tokens_;
  const int32_t context_;
  const bool shares_prefix_;
  const bool scores_prompt_;
  const bool tells_progress_;
  const size_t n_top_;  // likeliest tokens that are told of with each of the prompt's
  const double max_s_;  // of generating; 0 is no limit
  const SharingScope sharing_scope_;
  const int64_t id_;
  const int32_t wanted_slot_;

  State state_ = State::kWaiting;
  Finish finish_ = Finish::kUnfinished;
  bool is_paused_ = false;
  bool has_new_line_ = false;
  const Sequence* leader_ = nullptr;
  int32_t n_led_ = 0;
  int32_t slot_ = -1;
  int32_t last_slot_ = -1;
  std::vector<Token> tokens_;
  Token chosen_ = -1;
  TokenList told_;       // of it
  std::string failure_;  // of choose(), with an exception
  int32_t n_computed_ = 0;
  int32_t n_read_ = 0;    // of the prompt, at any time: a preempted sequence reads it again
  int32_t n_cached_ = 0;  // of the prompt, not computed for it
  int32_t n_scored_ = 0;  // of the prompt, at any time
  int32_t n_unsent_ = 0;  // generated, and in no chunk yet
  TokenList scores_;      // of the prompt's tokens, in no chunk yet

  Sampler sampler_;
  AnswerText text_;
  const std::unique_ptr<Pooler> pooler_;  // null: generates

  const Clock::time_point submitted_;
  Clock::time_point started_;
  Clock::time_point first_token_;
  Clock::time_point last_token_;
  Clock::time_point paused_;
};

}  // namespace corosrv
