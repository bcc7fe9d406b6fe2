// One answer's text on its way out, and the tokens that it is made of.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "model/token_list.h"
#include "text/stop_matcher.h"
#include "text/text_stream.h"

namespace corosrv {

// Gives out whole characters, no piece of a stop string, and each token together with the last of its text: a token
// that waits for the rest of a character, or because its text may begin a stop string, is told of when that is out.
// So the bytes of all tokens told of, one behind the other, are the text.
//
// The text decides where it ends. A token that a stop string cuts keeps the bytes before it, and those behind the cut
// are not told of at all, as in OpenAI's API; a token that ends an answer inside a character keeps the whole ones.
class AnswerText {
 public:
  explicit AnswerText(const std::vector<std::string>& stops) : stop_matcher_(stops) {}

  // A token that adds `bytes`, and what is to be told of it, perhaps nothing. Returns the text that may leave now.
  std::string push(std::string_view bytes, TokenList told);

  // At the end: what was held back in vain. Nothing may be pushed then.
  std::string flush();

  // Tokens whose text has left since the last call; after flush() or a match, all that are left.
  TokenList take_tokens();

  bool has_stopped() const { return stop_matcher_.has_matched(); }
  // After that: the stop string.
  const std::string& stopping_word() const { return stop_matcher_.matched(); }

 private:
  struct Pending {
    TokenList told;
    TextStream before;  // as it was when the token came
    size_t begin;       // bytes of text before the token
    size_t end;         // so many have to leave for it to be told of
  };
  size_t kept_bytes(const Pending& pending) const;

  TextStream stream_;
  StopMatcher stop_matcher_;
  std::deque<Pending> pending_;
  size_t n_text_ = 0;  // bytes that came out of the stream
  size_t n_out_ = 0;   // of these, bytes that have left
  bool is_over_ = false;
};

}  // namespace corosrv
