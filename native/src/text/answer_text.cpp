#include "text/answer_text.h"

#include <utility>

namespace corosrv {

std::string AnswerText::push(std::string_view bytes, TokenList told) {
  if (!told.is_empty()) pending_.push_back({std::move(told), stream_, n_text_, n_text_});
  std::string whole = stream_.push(bytes);
  n_text_ += whole.size();
  // Where it ends inside a character, at least the first byte of that has to leave too.
  if (!pending_.empty()) pending_.back().end = n_text_ + (stream_.is_between() ? 0 : 1);
  std::string text = stop_matcher_.push(std::move(whole));
  n_out_ += text.size();
  is_over_ = has_stopped();
  return text;
}

std::string AnswerText::flush() {
  is_over_ = true;
  std::string text = stop_matcher_.flush();
  n_out_ += text.size();
  return text;
}

TokenList AnswerText::take_tokens() {
  TokenList taken;
  while (!pending_.empty() && pending_.front().end <= n_out_) {
    taken.append(pending_.front().told);
    pending_.pop_front();
  }
  if (!is_over_) return taken;
  for (Pending& pending : std::exchange(pending_, {})) {
    if (has_stopped() && pending.begin >= n_out_) break;
    pending.told.cut_first_piece(kept_bytes(pending));
    taken.append(pending.told);
  }
  return taken;
}

// The fewest of a token's bytes that make as much text as has left of it.
size_t AnswerText::kept_bytes(const Pending& pending) const {
  const std::string_view piece = pending.told.pieces();
  const auto whole = static_cast<size_t>(pending.told.entries().front().piece_size);
  for (size_t size = 0; size < whole; ++size) {
    TextStream stream = pending.before;
    if (pending.begin + stream.push(piece.substr(0, size)).size() >= n_out_) return size;
  }
  return whole;
}

}  // namespace corosrv
