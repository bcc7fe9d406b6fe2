#include "loop/sequence.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <limits>
#include <utility>

#include "sampling/likelihood.h"

namespace corosrv {

namespace {

using State = Sequence::State;

// The state table. Any state but the last may end; only a slot lets a sequence compute, and it may lose it.
bool may_move(State from, State to) {
  switch (from) {
    case State::kWaiting:
      return to == State::kStarting || to == State::kDone;
    case State::kStarting:
      return to == State::kPrefilling || to == State::kWaiting || to == State::kDone;
    case State::kPrefilling:
      return to == State::kDecoding || to == State::kWaiting || to == State::kDone;
    case State::kDecoding:
      return to == State::kWaiting || to == State::kDone;
    case State::kDone:
      return false;
  }
  return false;
}

std::unique_ptr<Pooler> pooler_for(const Task& task) {
  return task.vectors ? std::make_unique<Pooler>(*task.vectors) : nullptr;
}

double milliseconds(Clock::duration duration) { return 1000 * seconds(duration); }

TokenList first_of_prompt(Token token, const Vocabulary& vocabulary) {
  TokenList told;
  told.add(token, std::numeric_limits<float>::quiet_NaN(), added_text(vocabulary, token), 0);
  return told;
}

}  // namespace

Sequence::Sequence(Submission submission, const Vocabulary& vocabulary, int32_t context, Signals& signals,
                   LoopStats& stats)
    : reader_(std::move(submission.reader)),
      vocabulary_(vocabulary),
      signals_(signals),
      stats_(stats),
      index_(submission.task.index),
      n_prompt_(static_cast<int32_t>(submission.task.prompt.size())),
      max_tokens_(submission.task.max_tokens),
      context_(context),
      // Who wants the vectors or the scores of all tokens has to have them computed.
      shares_prefix_(submission.task.share_prefix && !submission.task.vectors && !submission.task.scores_prompt),
      scores_prompt_(submission.task.scores_prompt),
      tells_progress_(submission.task.tells_progress),
      n_top_(static_cast<size_t>(std::max(submission.task.sampling.n_probs, 0))),
      max_s_(submission.task.max_ms / 1000),
      sharing_scope_(std::move(submission.task.sharing_scope)),
      id_(submission.task.id),
      wanted_slot_(submission.task.slot),
      tokens_(std::move(submission.task.prompt)),
      sampler_(submission.task.sampling, vocabulary, context),
      text_(submission.task.stops),
      pooler_(pooler_for(submission.task)),
      submitted_(submission.submitted),
      started_(submitted_),
      first_token_(submitted_),
      last_token_(submitted_) {
  for (const Token token : tokens_) sampler_.accept(token);
  // Nothing stands before the first token: there is no saying how likely it was.
  if (scores_prompt_) tell_score(first_of_prompt(tokens_.front(), vocabulary));
}

Sequence::~Sequence() { finish(Finish::kError, "the engine ended before the answer did"); }

void Sequence::enter(State state) {
  assert(may_move(state_, state));
  state_ = state;
}

void Sequence::start(int32_t slot, Clock::time_point now) {
  enter(State::kStarting);
  slot_ = last_slot_ = slot;
  if (was_started()) return;
  started_ = now;
  stats_.queue_wait.observe(seconds(now - submitted_));
}

void Sequence::begin(int32_t n_held) {
  assert(n_held < static_cast<int32_t>(tokens_.size()));
  enter(State::kPrefilling);
  follow(nullptr, 0);
  n_computed_ = n_held;
  if (was_started()) return;
  n_read_ = n_cached_ = n_held;
  stats_.cached_tokens += static_cast<uint64_t>(n_held);
  if (tells_progress_) emit({});
}

void Sequence::computed(int32_t n_tokens) {
  assert(n_tokens <= n_pending());
  n_computed_ += n_tokens;
  if (state_ != State::kPrefilling) return;
  const int32_t n_read = std::min(n_computed_, n_prompt_);
  if (n_read > n_read_) stats_.prompt_tokens += static_cast<uint64_t>(n_read - std::exchange(n_read_, n_read));
  if (n_pending() == 0) {
    if (wants_vectors()) return finish(Finish::kStop);
    enter(State::kDecoding);
    if (is_at_limit()) return finish(Finish::kLength);
  }
  if (!scores_.is_empty() || tells_progress_) emit({});
}

TokenList Sequence::score(int32_t position, const float* logits) const {
  return likelihood_of(token(position + 1), logits, n_top_, vocabulary_);
}

void Sequence::tell_score(const TokenList& told) {
  scores_.append(told);
  ++n_scored_;
}

void Sequence::collect(const float* vector) { pooler_->add(vector); }

void Sequence::preempt() {
  enter(State::kWaiting);
  follow(nullptr, 0);
  slot_ = -1;
  n_computed_ = 0;
  if (pooler_) pooler_->clear();
  ++stats_.preempted;
}

void Sequence::choose(float* logits) {
  if (state_ != State::kDecoding) return;
  chosen_ = -1;
  try {
    chosen_ = sampler_.draw(logits, &told_);
  } catch (const std::exception& error) {
    failure_ = std::string("no token could be drawn: ") + error.what();
  }
}

void Sequence::take(Clock::time_point now) {
  if (state_ != State::kDecoding) return;
  if (chosen_ < 0) {
    finish_without_token();
  } else {
    accept(chosen_, now);
  }
}

void Sequence::finish_without_token() {
  if (!failure_.empty()) return finish(Finish::kError, failure_);
  switch (sampler_.lack()) {
    case Sampler::Lack::kChoice:
      return finish(Finish::kError, "no token can be drawn: all of them are banned", "all_tokens_banned");
    case Sampler::Lack::kNumber:
      return finish(Finish::kError, "no token can be drawn: the model's logits are not numbers");
    case Sampler::Lack::kContinuation:
      return finish(Finish::kStop);
    case Sampler::Lack::kAllowed:
      return finish(Finish::kError, "grammar_dead_end: no token of this model goes on as the grammar wants",
                    "grammar_dead_end");
    case Sampler::Lack::kTime:
      return finish(Finish::kError, "grammar_too_slow: there are too many ways to read the text by this grammar",
                    "grammar_too_slow");
  }
}

void Sequence::accept(Token token, Clock::time_point now) {
  if (n_generated() == 0) {
    first_token_ = now;
    stats_.ttft.observe(seconds(now - submitted_));
  } else {
    stats_.itl.observe(seconds(now - last_token_));
  }
  last_token_ = now;
  tokens_.push_back(token);
  sampler_.accept(token);
  ++n_unsent_;
  ++stats_.generated_tokens;

  std::string text = text_.push(added_text(vocabulary_, token), std::exchange(told_, {}));
  if (!text.empty()) emit(std::move(text));
  if (vocabulary_.is_end_of_generation(token) || text_.has_stopped()) {
    finish(Finish::kStop);
  } else if (is_at_limit() || (max_s_ > 0 && seconds(now - first_token_) >= max_s_)) {
    finish(Finish::kLength);
  }
}

bool Sequence::is_at_limit() const {
  return n_tokens() >= context_ || (max_tokens_ >= 0 && n_generated() >= max_tokens_);
}

// What has not been sent, but for the text, and how far the task is.
Chunk Sequence::make_chunk() {
  Chunk chunk;
  chunk.index = index_;
  chunk.n_tokens = std::exchange(n_unsent_, 0);
  chunk.prompt_tokens = n_prompt_;
  chunk.cached_tokens = n_cached_;
  if (tells_progress_) chunk.read_tokens = n_read_;
  if (n_generated() > 0) {
    chunk.prompt_ms = milliseconds(first_token_ - started_);
    chunk.decode_ms = milliseconds(last_token_ - first_token_);
  } else if (n_read_ > n_cached_) {
    chunk.prompt_ms = milliseconds(Clock::now() - started_);
  }
  if (TokenList tokens = text_.take_tokens(); !tokens.is_empty()) {
    chunk.tokens = std::make_unique<TokenList>(std::move(tokens));
  }
  if (!scores_.is_empty()) chunk.prompt_info = std::make_unique<TokenList>(std::exchange(scores_, {}));
  return chunk;
}

SlotStatus Sequence::describe() const {
  return {id_, state_ != State::kDone, n_prompt_, n_read_ - n_cached_, n_cached_, n_generated(), has_new_line_};
}

void Sequence::emit(std::string text) {
  has_new_line_ = has_new_line_ || text.find('\n') != std::string::npos;
  Chunk chunk = make_chunk();
  chunk.text = std::move(text);
  signals_.push(reader_, std::move(chunk));
}

void Sequence::count(const Chunk& last) {
  stats_.prompt_s += last.prompt_ms / 1000;
  stats_.decode_s += last.decode_ms / 1000;
  stats_.later_tokens += static_cast<uint64_t>(std::max(n_generated() - 1, 0));
  stats_.longest_task = std::max(stats_.longest_task, static_cast<uint64_t>(n_tokens()));
}

void Sequence::finish(Finish finish, const std::string& message, const char* code) {
  if (state_ == State::kDone) return;  // exactly one terminal chunk, whoever ends it again (I4)
  enter(State::kDone);
  finish_ = finish;
  stats_.count(finish);
  // What was held back in vain belongs to the answer, also when it ends early.
  std::string held = text_.flush();
  if (finish == Finish::kError && !held.empty()) emit(std::exchange(held, {}));

  Chunk chunk = make_chunk();
  chunk.finish = finish;
  count(chunk);
  if (wants_vectors() && finish == Finish::kStop) chunk.vector = pooler_->result();
  chunk.text = finish == Finish::kError ? message : std::move(held);
  if (text_.has_stopped()) chunk.stopping_word = text_.stopping_word();
  chunk.code = code;
  chunk.slot = last_slot_;
  signals_.push(reader_, std::move(chunk));
}

}  // namespace corosrv
