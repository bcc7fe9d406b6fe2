#include "loop/output.h"

#include <utility>

namespace corosrv {

void Output::resume(std::string_view bytes, size_t n_sent) {
  const std::string text = text_.push(bytes, {});
  has_new_line_ = text.find('\n') != std::string::npos;
  if (text.size() > n_sent) send(text.substr(n_sent));
}

void Output::add(Token token, std::string_view bytes, TokenList likelihoods, const SamplerState& state) {
  ++n_unsent_;
  if (request_.tells_state) {
    ids_.push_back(token);
    state_ = state;
  }
  std::string text = text_.push(bytes, std::move(likelihoods));
  has_new_line_ = has_new_line_ || text.find('\n') != std::string::npos;
  if (has_stopped()) {
    last_text_ = std::move(text);
  } else if (!text.empty()) {
    send(std::move(text));
  }
}

void Output::add_score(const TokenList& score) {
  scores_.append(score);
  ++n_scored_;
}

void Output::send(std::string text) {
  Chunk chunk = make_chunk();
  chunk.text = std::move(text);
  push(std::move(chunk));
}

void Output::finish(Finish finish, const std::string& message, const char* code, std::vector<float> vector,
                    int32_t slot) {
  // What was held back in vain belongs to the answer, also when it ends early. One that may go on elsewhere behind an
  // error does not end: what is held back may turn out to be a stop string.
  const bool is_error = finish == Finish::kError;
  std::string held = is_error && request_.tells_state ? std::string() : std::move(last_text_) + text_.flush();
  if (is_error && !held.empty()) send(std::exchange(held, {}));

  Chunk chunk = make_chunk();
  chunk.finish = finish;
  chunk.vector = std::move(vector);
  chunk.text = is_error ? message : std::move(held);
  if (text_.has_stopped()) chunk.stopping_word = text_.stopping_word();
  chunk.code = code;
  chunk.slot = slot;
  chunk.n_dropped = progress_.n_dropped();
  push(std::move(chunk));
}

void Output::push(Chunk chunk) {
  hash_ = mixed_bytes(hash_, chunk.text.data(), chunk.text.size());
  if (!chunk.vector.empty()) hash_ = hash_of(chunk.vector.data(), chunk.vector.size() * sizeof(float), hash_);
  signals_.push(reader_, std::move(chunk));
}

// Has what no chunk had yet, but for the text, and how far the sequence is.
Chunk Output::make_chunk() {
  Chunk chunk;
  chunk.index = request_.index;
  chunk.n_tokens = std::exchange(n_unsent_, 0);
  chunk.prompt_tokens = progress_.n_prompt();
  chunk.cached_tokens = progress_.n_cached();
  chunk.drafted_tokens = progress_.n_drafted();
  chunk.accepted_tokens = progress_.n_accepted();
  if (request_.tells_progress) chunk.read_tokens = progress_.n_read();
  chunk.prompt_ms = progress_.prompt_ms();
  chunk.decode_ms = progress_.decode_ms();
  chunk.compute_ms = progress_.compute_ms();
  if (TokenList tokens = text_.take_tokens(); !tokens.is_empty()) {
    chunk.tokens = std::make_unique<TokenList>(std::move(tokens));
  }
  chunk.ids = std::exchange(ids_, {});
  chunk.state = state_;
  if (has_scores()) chunk.prompt_info = std::make_unique<TokenList>(std::exchange(scores_, {}));
  return chunk;
}

}  // namespace corosrv
