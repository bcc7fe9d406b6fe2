// One generation, or one prompt that becomes a vector: its state table, and the moves between its parts.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "handover/inbox.h"
#include "handover/reader.h"
#include "handover/signals.h"
#include "handover/tape.h"
#include "loop/drafter.h"
#include "loop/loop_stats.h"
#include "loop/output.h"
#include "loop/pooler.h"
#include "loop/progress.h"
#include "loop/sequence_request.h"
#include "loop/slot_status.h"
#include "model/backend.h"
#include "model/embedded_rows.h"
#include "model/types.h"
#include "sampling/sampler.h"

namespace corosrv {

// Owned by the scheduler and used by the decode thread alone. Writes to its reader exactly one terminal chunk, in
// finish() or, for a sequence that is dropped whatever the reason, in the destructor (I4).
class Sequence {
 public:
  // kStarting: has a slot, and may yet begin from a prefix that another sequence computes.
  enum class State { kWaiting, kStarting, kPrefilling, kDecoding, kDone };

  // `vocabulary`, `signals` and `stats` outlive the sequence. `context`: tokens that it may hold. `may_guess`: what its
  // slot holds can be cut at any position.
  Sequence(Submission submission, const Vocabulary& vocabulary, int32_t context, Signals& signals, LoopStats& stats,
           bool may_guess = false);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  State state() const { return state_; }
  int32_t slot() const { return slot_; }
  // Where it has to run, or -1.
  int32_t wanted_slot() const { return request_.slot; }
  int32_t priority() const { return request_.priority; }
  int32_t tier() const { return request_.tier; }
  double weight() const { return request_.weight; }
  uint64_t owner() const { return request_.sharing_scope.owner; }
  Clock::time_point deadline() const { return request_.deadline; }
  // What its slot shows of it.
  SlotStatus describe() const;
  Reader& reader() const { return output_.reader(); }
  bool is_reader_full() const { return output_.is_full(); }
  bool is_reader_cancelled() const { return output_.is_cancelled(); }
  // Ends the thoughts that it has or is yet to have, once its reader asks for that.
  void end_thoughts_if_asked() {
    if (sampler_.has_thoughts_ahead() && output_.ends_thoughts()) sampler_.end_thoughts();
  }
  // How it ended, for who records it.
  TapedEnd taped_end() const { return {request_.id, finish_, progress_.n_generated(), output_.hash()}; }

  // Tokens that the KV cache holds, and those that are known and not in it yet. One is pending while decoding.
  int32_t n_computed() const { return progress_.n_computed(); }
  int32_t n_generated() const { return progress_.n_generated(); }
  int32_t n_pending() const { return progress_.n_pending(); }
  // Behind the known ones stand the guesses.
  Token token(int32_t position) const {
    const int32_t n_ahead = position - progress_.n_tokens();
    return n_ahead < 0 ? progress_.token(position) : draft_[static_cast<size_t>(n_ahead)];
  }
  // Of those that are pending, how many one batch may hold: embedding rows come apart from tokens.
  int32_t n_next() const;
  // The embedding row at a position, or null.
  const float* embedding(int32_t position) const { return rows_ == nullptr ? nullptr : rows_->at(position); }
  // Its next batch is of embedding rows.
  bool reads_rows() const { return embedding(n_computed()) != nullptr; }
  // Its next batch is of all n_next() rows, and of nothing else.
  bool reads_non_causal() const { return rows_ != nullptr && rows_->is_non_causal(n_computed()); }
  // Where the model sees the token or row at a position.
  RopePosition rope(int32_t position) const {
    return rows_ == nullptr ? text_position(position) : rows_->position(position);
  }
  // Its first `n_tokens`, for the memory of a slot.
  Extent extent(int32_t n_tokens) const { return {n_tokens, n_tokens == 0 ? -1 : rope(n_tokens - 1).t}; }
  // The most of its first `n_tokens` that the memory of a slot can be cut to.
  int32_t cut(int32_t n_tokens) const { return rows_ == nullptr ? n_tokens : rows_->cut(n_tokens); }
  // Prompt, then generated.
  const std::vector<Token>& tokens() const { return progress_.tokens(); }
  // What a shifted context holds was computed with tokens that are gone: it is of use to nobody else.
  bool shares_prefix() const { return request_.shares_prefix && progress_.n_dropped() == 0; }
  const SharingScope& sharing_scope() const { return request_.sharing_scope; }
  // It is to become a vector; no token is generated.
  bool wants_vectors() const { return request_.wants_vectors; }
  bool scores_prompt() const { return request_.scores_prompt; }
  Finish finished() const { return finish_; }

  Clock::time_point submitted() const { return request_.submitted; }
  // Its number in the queue, which it keeps when it comes back; negative before it had one.
  int64_t arrival() const { return arrival_; }
  void set_arrival(int64_t arrival) { arrival_ = arrival; }
  // Since when it waits for a slot: since it was submitted, or has lost one to somebody whose turn it was.
  Clock::time_point waits_since() const { return displaced_.value_or(submitted()); }
  bool has_had_slot() const { return last_slot_ >= 0; }
  // When it first got a slot.
  Clock::time_point started() const { return progress_.started(); }
  // When it last got one, and tokens that were computed there since.
  Clock::time_point restarted() const { return restarted_; }
  int32_t n_since_restart() const { return n_computed() - n_held_; }

  // Tokens that it may hold by the time it has generated so many more.
  int32_t n_cells(int32_t n_ahead) const;

  // Its next token has no room in the slot: to be shifted before that is computed.
  bool is_full() const { return state_ == State::kDecoding && may_shift() && progress_.n_tokens() >= context_; }
  Cut cut_of_full() const;

  // The machine has worked so long for it.
  void charge(double seconds) { progress_.charge(seconds); }

  // The reader is full: the sequence is left out of the steps.
  bool is_paused() const { return is_paused_; }
  void set_paused(bool is_paused, Clock::time_point now = Clock::now()) {
    if (is_paused && !is_paused_) paused_ = now;
    is_paused_ = is_paused;
  }
  // When it was paused last.
  Clock::time_point paused() const { return paused_; }

  // Of so many tokens that are somewhere already, how many it can begin with: not with its last one, whose logits it
  // needs, and with no part of rows that are computed together.
  int32_t n_to_begin_with(size_t n_tokens) const {
    return cut(static_cast<int32_t>(std::min(n_tokens, tokens().size() - 1)));
  }
  // So many tokens of its prompt are to be copied once they are computed; 0: none.
  int32_t n_to_copy() const { return n_to_copy_; }
  void copy_at(int32_t n_tokens) { n_to_copy_ = n_tokens; }
  bool is_to_be_copied() const { return n_to_copy_ > 0 && n_computed() >= n_to_copy_; }

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
  void rewind(int32_t n_held) { progress_.rewind(n_held); }  // its slot holds no more than these tokens any more
  void preempt();                                            // gives up its slot and what that holds; -> waiting
  void displace(Clock::time_point now);  // the same, for somebody whose turn it is: how long it waits is not its time
  void shift();                          // when is_full(): these tokens are gone
  // -> done; nothing when it is done already. `code`, a constant, tells programs of an error.
  void finish(Finish finish, const std::string& message = {}, const char* code = "");

  // Ends because the logits are no numbers. What its slot holds may be none either.
  void poison(const std::string& message, const char* code = "");
  bool is_poisoned() const { return is_poisoned_; }

  // The slot's content now lies in another slot.
  void move(int32_t slot) { slot_ = last_slot_ = slot; }

  // Whether the logits behind a pending token are needed: the next one is drawn, or it is a token of the prompt that is
  // scored.
  bool wants_logits(int32_t position) const { return position + 1 >= progress_.n_tokens() || is_scored(position); }
  bool is_scored(int32_t position) const {
    return scores_prompt() && position + 1 >= output_.n_scored() && position + 1 < progress_.n_prompt();
  }
  // How likely the prompt's next token was, by the logits behind this one. Any thread, while the sequence stands still.
  TokenList score(int32_t position, const float* logits) const;
  // The scores of the prompt's next tokens come in order, before computed() sends them.
  void add_score(const TokenList& score) { output_.add_score(score); }

  // How good the guesses of its next tokens are, of which it has room for as many as this says; nothing where it may
  // not guess. Guesses are computed behind the one token that is pending, and those that come true are drawn in one
  // step.
  Prospect prospect(int32_t most);
  // Of so many guesses, those that it may have and has room for.
  int32_t n_guessable(int32_t most) const;
  // Makes so many, for the step that follows; 0 where those there were are not worth their price.
  void draft(int32_t n_tokens);
  // Takes these, of which there are some and no more than n_guessable(): a draft model's.
  void draft(std::vector<Token> guesses);
  int32_t n_drafted() const { return static_cast<int32_t>(draft_.size()); }
  void drop_draft() { draft_.clear(); }

  // The next token is drawn in two parts: choose() touches this sequence alone and throws nothing, so that different
  // ones may choose in different threads at once; take() then passes it to the reader and the counters, and may end the
  // sequence. `rows`: the logits behind the pending token, then behind each guess. Each guess that is drawn lets the
  // next token be drawn as well, by the same sampler: what is said does not depend on the guesses. take() leaves those
  // computed() that came true.
  void choose(const RowLogits* rows);
  void take(Clock::time_point now);

 private:
  // What choose() leaves for take().
  struct Drawn {
    Token token = -1;
    TokenList likelihoods;
    SamplerState state{};  // the sampler's behind the token, where the task tells it
  };

  void resume(const Earlier& earlier);
  void enter(State state);
  bool draw(const RowLogits& row, Token guess);
  void accept(Drawn drawn, Clock::time_point now);
  void count_guesses(const std::vector<Token>& guesses);
  void finish_without_token();
  void count_end();
  bool may_shift() const;
  bool is_at_limit() const;

  const SequenceRequest request_;
  const Vocabulary& vocabulary_;
  LoopStats& stats_;
  const int32_t context_;
  const std::shared_ptr<const EmbeddedRows> rows_;  // null: tokens alone
  Progress progress_;
  Output output_;
  Sampler sampler_;
  const std::unique_ptr<Pooler> pooler_;  // null: generates
  std::unique_ptr<Drafter> drafter_;      // null: never guesses
  std::vector<Token> draft_;              // guesses that the step computes
  bool is_of_model_ = false;              // they are a draft model's

  State state_ = State::kWaiting;
  Finish finish_ = Finish::kUnfinished;
  int32_t slot_ = -1;
  int32_t last_slot_ = -1;
  const Sequence* leader_ = nullptr;
  int32_t n_led_ = 0;
  int32_t n_to_copy_ = 0;
  bool is_paused_ = false;
  bool is_poisoned_ = false;
  Clock::time_point paused_;
  int64_t arrival_ = -1;
  Clock::time_point restarted_;
  int32_t n_held_ = 0;                          // tokens that its slot had when it began there
  std::optional<Clock::time_point> displaced_;  // none: has a slot, or waits as it did from the first

  std::vector<Drawn> drawn_;
  std::string failure_;  // an exception's words
};

}  // namespace corosrv
