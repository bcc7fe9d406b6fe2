#include "sequence.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

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

}  // namespace

Sequence::Sequence(Submission submission, const Vocabulary& vocabulary, int32_t context, Signals& signals,
                   corosrv_stats& stats)
    : reader_(std::move(submission.reader)),
      vocabulary_(vocabulary),
      signals_(signals),
      stats_(stats),
      index_(submission.task.index),
      n_prompt_(static_cast<int32_t>(submission.task.prompt.size())),
      max_tokens_(submission.task.max_tokens),
      context_(context),
      // Who wants the vectors of all tokens has to have them computed.
      shares_prefix_(submission.task.share_prefix && !submission.task.vectors),
      tokens_(std::move(submission.task.prompt)),
      sampler_(submission.task.sampling, vocabulary, context),
      stop_matcher_(submission.task.stops),
      pooler_(pooler_for(submission.task)),
      submitted_(submission.submitted),
      started_(submitted_),
      first_token_(submitted_),
      last_token_(submitted_) {
  for (const Token token : tokens_) sampler_.accept(token);
}

Sequence::~Sequence() { finish(Finish::kError, "the engine ended before the answer did"); }

void Sequence::enter(State state) {
  assert(may_move(state_, state));
  state_ = state;
}

void Sequence::start(int32_t slot, Clock::time_point now) {
  enter(State::kStarting);
  slot_ = slot;
  if (was_started()) return;
  started_ = now;
  observe(stats_.queue_wait, seconds(now - submitted_));
}

void Sequence::begin(int32_t n_held) {
  assert(n_held < static_cast<int32_t>(tokens_.size()));
  enter(State::kPrefilling);
  follow(nullptr, 0);
  n_computed_ = n_held;
  if (was_started()) return;
  n_read_ = n_cached_ = n_held;
  stats_.cached_tokens += static_cast<uint64_t>(n_held);
}

void Sequence::computed(int32_t n_tokens) {
  assert(n_tokens <= n_pending());
  n_computed_ += n_tokens;
  if (state_ != State::kPrefilling) return;
  const int32_t n_read = std::min(n_computed_, n_prompt_);
  if (n_read > n_read_) stats_.prompt_tokens += static_cast<uint64_t>(n_read - std::exchange(n_read_, n_read));
  if (n_pending() > 0) return;
  if (wants_vectors()) return finish(Finish::kStop);
  enter(State::kDecoding);
  if (is_at_limit()) finish(Finish::kLength);
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
    chosen_ = sampler_.draw(logits);
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
      return finish(Finish::kError, "no token can be drawn: all are banned, or the model's logits are not numbers");
    case Sampler::Lack::kContinuation:
      return finish(Finish::kStop);
    case Sampler::Lack::kAllowed:
      return finish(Finish::kError, "grammar_dead_end: no token of this model goes on as the grammar wants");
    case Sampler::Lack::kTime:
      return finish(Finish::kError, "grammar_too_slow: there are too many ways to read the text by this grammar");
  }
}

void Sequence::accept(Token token, Clock::time_point now) {
  if (n_generated() == 0) {
    first_token_ = now;
    observe(stats_.ttft, seconds(now - submitted_));
  } else {
    observe(stats_.itl, seconds(now - last_token_));
  }
  last_token_ = now;
  tokens_.push_back(token);
  sampler_.accept(token);
  ++n_unsent_;
  ++stats_.generated_tokens;

  if (vocabulary_.is_end_of_generation(token)) {
    finish(Finish::kStop);
    return;
  }
  std::string text = stop_matcher_.push(text_stream_.push(vocabulary_.text(token)));
  if (!text.empty()) emit(std::move(text));
  if (stop_matcher_.has_matched()) {
    finish(Finish::kStop);
  } else if (is_at_limit()) {
    finish(Finish::kLength);
  }
}

bool Sequence::is_at_limit() const {
  return static_cast<int32_t>(tokens_.size()) >= context_ || (max_tokens_ >= 0 && n_generated() >= max_tokens_);
}

void Sequence::emit(std::string text) {
  Chunk chunk;
  chunk.index = index_;
  chunk.n_tokens = std::exchange(n_unsent_, 0);
  chunk.text = std::move(text);
  signals_.push(reader_, std::move(chunk));
}

void Sequence::finish(Finish finish, const std::string& message) {
  if (state_ == State::kDone) return;  // exactly one terminal chunk, whoever ends it again (I4)
  enter(State::kDone);
  finish_ = finish;
  count_finish(stats_, finish);
  // What the stop matcher held back in vain belongs to the answer, also when it ends early.
  std::string held = stop_matcher_.flush();
  if (finish == Finish::kError && !held.empty()) emit(std::exchange(held, {}));

  Chunk chunk;
  chunk.index = index_;
  chunk.n_tokens = std::exchange(n_unsent_, 0);
  chunk.finish = finish;
  chunk.prompt_tokens = n_prompt_;
  chunk.cached_tokens = n_cached_;
  if (n_generated() > 0) {
    chunk.prompt_ms = milliseconds(first_token_ - started_);
    chunk.decode_ms = milliseconds(last_token_ - first_token_);
  }
  if (wants_vectors() && finish == Finish::kStop) {
    chunk.vector = pooler_->result();
    chunk.prompt_ms = milliseconds(Clock::now() - started_);
  }
  chunk.text = finish == Finish::kError ? message : std::move(held);
  signals_.push(reader_, std::move(chunk));
}

}  // namespace corosrv
