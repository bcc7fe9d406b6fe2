// Which tokens may come next, so that the text stays within a grammar.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "grammar/recognizer.h"
#include "grammar/token_order.h"
#include "model/backend.h"
#include "model/candidate.h"
#include "model/types.h"

namespace corosrv {

// One sequence's place in its grammar. Tokens that end the generation are allowed where the text is complete, tokens
// without text never. Copies are independent of each other: each may be used by a thread of its own.
class Grammar {
 public:
  // `vocabulary` outlives the grammar; `order` is of the same.
  // `token_ms`: of looking for one token, some.
  Grammar(std::shared_ptr<const Program> program, const Vocabulary& vocabulary, std::shared_ptr<const TokenOrder> order,
          double token_ms = 20);

  // Drops the candidates that are not allowed.
  void keep_allowed(std::vector<Candidate>& candidates);
  // Sets the logits of all tokens that are not allowed to -infinity.
  void ban_refused(float* logits);
  // The text goes on with these bytes, which may end inside a character. False as with accept().
  bool accept_text(std::string_view text);
  // The token is drawn. False when it was not allowed; the grammar is of no use then.
  bool accept(Token token);

  // The text belongs to the grammar as it stands.
  bool is_complete() const { return recognizer_.is_complete(); }
  // The search for the next token was given up: it would take too long. Whatever was not looked at was
  // refused.
  bool is_too_slow() const { return recognizer_.is_overworked(); }

 private:
  bool allows(Token token);
  bool push(std::string_view text);

  Recognizer recognizer_;
  const Vocabulary* vocabulary_;
  std::shared_ptr<const TokenOrder> order_;
};

}  // namespace corosrv
