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

// Of a context, these stay free of what n_keep keeps.
constexpr int32_t kLeastFree = 4;

constexpr Token kNoToken = -1;

// The state table. Any state but the last may end; only a slot lets a sequence compute, and it may lose it.
[[maybe_unused]] bool may_move(State from, State to) {
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

// Nothing stands before the first token: there is no saying how likely it was.
TokenList score_of_first(Token token, const Vocabulary& vocabulary) {
  TokenList score;
  score.add(token, std::numeric_limits<float>::quiet_NaN(), added_text(vocabulary, token), 0);
  return score;
}

}  // namespace

Sequence::Sequence(Submission submission, const Vocabulary& vocabulary, int32_t context, Signals& signals,
                   LoopStats& stats, bool may_guess)
    : request_(submission),
      vocabulary_(vocabulary),
      stats_(stats),
      context_(context),
      rows_(std::move(submission.task.rows)),
      progress_(std::move(submission.task.prompt), submission.task.earlier.tokens, submission.submitted),
      output_(std::move(submission.reader), signals, request_, progress_, submission.task.stops),
      sampler_(submission.task.sampling, vocabulary, context),
      pooler_(pooler_for(submission.task)),
      drafter_(may_guess && pooler_ == nullptr && rows_ == nullptr
                   ? std::make_unique<Drafter>(std::move(submission.task.prediction),
                                               static_cast<size_t>(progress_.n_prompt()))
                   : nullptr) {
  for (int32_t position = 0; position < progress_.n_prompt(); ++position) {
    if (!is_row(token(position))) sampler_.accept(token(position));
  }
  if (!submission.task.earlier.tokens.empty()) resume(submission.task.earlier);
  if (scores_prompt()) add_score(score_of_first(tokens().front(), vocabulary));
}

Sequence::~Sequence() { finish(Finish::kError, "the engine ended before the answer did"); }

// That the tokens can be followed was checked with the task (api/resumed.h).
void Sequence::resume(const Earlier& earlier) {
  std::string bytes;
  for (const Token token : earlier.tokens) {
    sampler_.replay(token);
    bytes += added_text(vocabulary_, token);
  }
  if (earlier.state) sampler_.restore(*earlier.state);
  output_.resume(bytes, earlier.n_sent);
}

void Sequence::enter(State state) {
  assert(may_move(state_, state));
  state_ = state;
}

int32_t Sequence::n_next() const {
  if (rows_ == nullptr) return n_pending();
  return std::min(n_pending(), rows_->end_of_run(n_computed()) - n_computed());
}

void Sequence::start(int32_t slot, Clock::time_point now) {
  enter(State::kStarting);
  slot_ = last_slot_ = slot;
  restarted_ = now;
  if (displaced_) progress_.add_absence(now - *displaced_);
  displaced_.reset();
  if (progress_.has_begun()) return;
  progress_.start(now);
  stats_.queue_wait.observe(seconds(now - submitted()));
}

void Sequence::begin(int32_t n_held) {
  enter(State::kPrefilling);
  follow(nullptr, 0);
  n_held_ = n_held;
  const bool is_first_time = !progress_.has_begun();
  stats_.cached_tokens += static_cast<uint64_t>(progress_.begin(n_held));
  if (is_first_time && request_.tells_progress) output_.send({});
}

void Sequence::computed(int32_t n_tokens) {
  stats_.prompt_tokens += static_cast<uint64_t>(progress_.add_computed(n_tokens));
  if (state_ != State::kPrefilling) return;
  if (n_pending() == 0) {
    if (wants_vectors()) return finish(Finish::kStop);
    enter(State::kDecoding);
    if (is_at_limit()) return finish(Finish::kLength);
  }
  if (output_.has_scores() || request_.tells_progress) output_.send({});
}

TokenList Sequence::score(int32_t position, const float* logits) const {
  return likelihood_of(token(position + 1), logits, request_.n_top, vocabulary_);
}

void Sequence::collect(const float* vector) { pooler_->add(vector); }

void Sequence::preempt() {
  if (is_full()) shift();  // it is read again, and has to fit
  enter(State::kWaiting);
  follow(nullptr, 0);
  slot_ = -1;
  progress_.rewind(0);
  if (pooler_) pooler_->clear();
  ++stats_.preempted;
}

void Sequence::displace(Clock::time_point now) {
  preempt();
  displaced_ = now;
}

// Behind a shift the sequence goes on with other tokens than those that it guessed by.
void Sequence::shift() {
  progress_.drop(cut_of_full());
  drafter_ = nullptr;
}

Prospect Sequence::prospect(int32_t most) {
  most = n_guessable(most);
  return most > 0 ? drafter_->look(tokens(), most) : Prospect();
}

// No guess reaches the end of the answer, or of the context: what is drawn behind the last one still has its room.
int32_t Sequence::n_guessable(int32_t most) const {
  if (drafter_ == nullptr || state_ != State::kDecoding || n_pending() != 1) return 0;
  most = std::min(most, context_ - progress_.n_tokens() - 1);
  if (request_.max_tokens >= 0) most = std::min(most, request_.max_tokens - progress_.n_generated() - 1);
  return std::max(most, 0);
}

void Sequence::draft(int32_t n_tokens) {
  if (n_tokens == 0) return drafter_->pass_over();
  draft_ = drafter_->guess(tokens(), n_tokens);
  is_of_model_ = false;
}

void Sequence::draft(std::vector<Token> guesses) {
  draft_ = std::move(guesses);
  is_of_model_ = true;
}

void Sequence::choose(const RowLogits* rows) {
  if (state_ != State::kDecoding) return;
  drawn_.clear();
  try {
    for (const Token guess : draft_) {
      if (!draw(*rows++, guess)) return;
    }
    draw(*rows, kNoToken);
  } catch (const std::exception& error) {
    drawn_.push_back({});
    failure_ = std::string("no token could be drawn: ") + error.what();
  }
}

// Returns whether what is behind the guess is to be drawn, too.
bool Sequence::draw(const RowLogits& row, Token guess) {
  Drawn drawn;
  drawn.token = sampler_.draw(row, &drawn.likelihoods);
  if (drawn.token >= 0) sampler_.accept(drawn.token);
  if (request_.tells_state) drawn.state = sampler_.state();
  const bool goes_on = drawn.token >= 0 && drawn.token == guess && !vocabulary_.is_end_of_generation(guess);
  drawn_.push_back(std::move(drawn));
  return goes_on;
}

void Sequence::take(Clock::time_point now) {
  const std::vector<Token> guesses = std::exchange(draft_, {});
  if (state_ != State::kDecoding) return;
  if (!guesses.empty()) count_guesses(guesses);
  for (size_t i = 0; i < drawn_.size() && state_ == State::kDecoding; ++i) {
    if (i > 0) computed(1);  // the token before it, which was guessed
    if (drawn_[i].token < 0) {
      finish_without_token();
    } else {
      accept(std::move(drawn_[i]), now);
    }
  }
}

// Before the answer hears of any: its last chunk tells of all.
void Sequence::count_guesses(const std::vector<Token>& guesses) {
  size_t n_right = 0;
  while (n_right < guesses.size() && n_right < drawn_.size() && drawn_[n_right].token == guesses[n_right]) ++n_right;
  if (!is_of_model_) drafter_->learn(guesses.size(), n_right);
  progress_.add_guesses(static_cast<int32_t>(guesses.size()), static_cast<int32_t>(n_right));
  ++stats_.drafts;
  stats_.draft_tokens += guesses.size();
  stats_.draft_accepted_tokens += n_right;
  if (!is_of_model_) return;
  stats_.draft_model_tokens += guesses.size();
  stats_.draft_model_accepted_tokens += n_right;
}

void Sequence::finish_without_token() {
  if (!failure_.empty()) return finish(Finish::kError, failure_);
  switch (sampler_.lack()) {
    case Sampler::Lack::kChoice:
      return finish(Finish::kError, "no token can be drawn: all of them are banned", "all_tokens_banned");
    case Sampler::Lack::kNumber:
      return poison("no token can be drawn: the model's logits are not numbers");
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

void Sequence::accept(Drawn drawn, Clock::time_point now) {
  const Token token = drawn.token;
  if (progress_.n_drawn() == 0) {
    stats_.ttft.observe(seconds(now - submitted()));
  } else {
    stats_.itl.observe(seconds(now - progress_.last_token()));
  }
  ++stats_.generated_tokens;
  progress_.add(token, now);
  output_.add(token, added_text(vocabulary_, token), std::move(drawn.likelihoods), drawn.state);
  if (vocabulary_.is_end_of_generation(token) || output_.has_stopped()) {
    finish(Finish::kStop);
  } else if (is_at_limit() || (request_.max_s > 0 && progress_.seconds_of_generating(now) >= request_.max_s)) {
    finish(Finish::kLength);
  }
}

int32_t Sequence::n_cells(int32_t n_ahead) const {
  const int32_t n_known = progress_.n_tokens();
  const int32_t n_left = request_.max_tokens >= 0 ? request_.max_tokens - progress_.n_generated() : n_ahead;
  return wants_vectors() ? n_known : std::min(n_known + std::min(n_left, n_ahead), context_);
}

bool Sequence::may_shift() const { return request_.shift && context_ > kLeastFree; }

// As llama-server chooses, so that texts go on alike.
Cut Sequence::cut_of_full() const {
  const int32_t n_held = progress_.n_tokens() - 1;
  const int32_t n_kept = std::max(std::min(request_.shift->n_keep, context_ - kLeastFree), 0);
  const int32_t n_left = n_held - n_kept;
  const int32_t n_wanted = request_.shift->n_discard > 0 ? request_.shift->n_discard : n_left / 2;
  return {n_kept, std::min(n_wanted, n_left - 1)};
}

bool Sequence::is_at_limit() const {
  const int32_t most = request_.max_tokens >= 0 ? request_.max_tokens : std::numeric_limits<int32_t>::max();
  return progress_.n_generated() >= most || (progress_.n_tokens() >= context_ && !may_shift());
}

SlotStatus Sequence::describe() const {
  SlotStatus status;
  status.task = request_.id;
  status.is_busy = state_ != State::kDone;
  status.prompt_tokens = progress_.n_prompt();
  status.computed_tokens = progress_.n_read() - progress_.n_cached();
  status.cached_tokens = progress_.n_cached();
  status.generated_tokens = progress_.n_generated();
  status.has_new_line = output_.has_new_line();
  return status;
}

void Sequence::finish(Finish finish, const std::string& message, const char* code) {
  if (state_ == State::kDone) return;  // exactly one terminal chunk, whoever ends it again (I4)
  enter(State::kDone);
  finish_ = finish;
  count_end();
  const bool has_vector = wants_vectors() && finish == Finish::kStop;
  output_.finish(finish, message, code, has_vector ? pooler_->result() : std::vector<float>(), last_slot_);
}

void Sequence::poison(const std::string& message, const char* code) {
  is_poisoned_ = true;
  finish(Finish::kError, message, code);
}

void Sequence::count_end() {
  stats_.count(finish_);
  stats_.prompt_s += progress_.prompt_ms() / 1000;
  stats_.decode_s += progress_.decode_ms() / 1000;
  stats_.later_tokens += static_cast<uint64_t>(std::max(progress_.n_drawn() - 1, 0));
  const uint64_t n_tokens =
      static_cast<uint64_t>(progress_.n_prompt()) + static_cast<uint64_t>(progress_.n_generated());
  stats_.longest_task = std::max(stats_.longest_task, n_tokens);
}

}  // namespace corosrv
