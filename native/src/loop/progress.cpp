#include "loop/progress.h"

#include <algorithm>

namespace corosrv {

namespace {

double milliseconds(Clock::duration duration) { return 1000 * seconds(duration); }

}  // namespace

Progress::Progress(std::vector<Token> prompt, const std::vector<Token>& earlier, Clock::time_point submitted)
    : n_prompt_(static_cast<int32_t>(prompt.size())),
      n_earlier_(static_cast<int32_t>(earlier.size())),
      tokens_(std::move(prompt)),
      n_generated_(n_earlier_),
      started_(submitted),
      first_token_(submitted),
      last_token_(submitted) {
  tokens_.insert(tokens_.end(), earlier.begin(), earlier.end());
}

double Progress::prompt_ms() const {
  if (n_drawn() > 0) return milliseconds(first_token_ - started_);
  return n_read_ > n_cached_ ? milliseconds(Clock::now() - started_) : 0;
}

double Progress::decode_ms() const { return n_drawn() > 0 ? milliseconds(last_token_ - first_token_) : 0; }

int32_t Progress::begin(int32_t n_held) {
  assert(n_held < n_tokens());
  n_computed_ = n_held;
  if (has_begun()) return 0;
  n_read_ = n_cached_ = std::min(n_held, n_prompt_);
  return n_cached_;
}

int32_t Progress::add_computed(int32_t n_tokens) {
  assert(n_tokens <= n_pending());
  n_computed_ += n_tokens;
  const int32_t n_read = std::min(n_computed_, n_prompt_);
  return n_read > n_read_ ? n_read - std::exchange(n_read_, n_read) : 0;
}

void Progress::drop(Cut cut) {
  assert(cut.n_discarded > 0 && cut.n_kept + cut.n_discarded < n_tokens());
  const auto first = tokens_.begin() + cut.n_kept;
  tokens_.erase(first, first + cut.n_discarded);
  n_computed_ = std::max(n_computed_ - cut.n_discarded, 0);
  n_dropped_ += cut.n_discarded;
}

void Progress::add(Token token, Clock::time_point now) {
  if (n_drawn() == 0) first_token_ = now;
  ++n_generated_;
  last_token_ = now;
  tokens_.push_back(token);
}

}  // namespace corosrv
