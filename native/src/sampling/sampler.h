// Logits to token: bias, stages, grammar, draw.
#pragma once

#include <memory>
#include <vector>

#include "grammar/grammar.h"
#include "model/backend.h"
#include "model/token_list.h"
#include "model/types.h"
#include "sampling/chooser.h"
#include "sampling/random.h"
#include "sampling/sampling_order.h"
#include "sampling/stage.h"
#include "sampling/thought_budget.h"
#include "sampling/trigger.h"

namespace corosrv {

// Draws one sequence's tokens. The same seed and the same logits give the same tokens, whatever else is decoded. Used
// by one thread at a time.
//
// The full vocabulary is turned into candidates only where the first cut in the order leaves it whole; everything else
// works on the k best, which come straight from the logits. A grammar filters those k, and the vocabulary only where
// it refuses all of them, before the k best are chosen again: what is drawn is the model's own choice wherever the
// grammar allows one of its k best tokens. Greedy, it is the best token that the grammar allows in either case.
//
// Where a device has picked the largest logits of the row, a draw goes by those, and fetches the others only where they
// may matter. All of them are at most the least that was picked, and stay so where nothing raises them: whatever of the
// picked ones is larger, after biases and penalties, is the beginning of the whole vocabulary in order. So the k best
// are known if k of the picked ones are larger than that; what equals it may have been picked or not.
//
// A grammar may begin late, with the first of some texts (triggers) in what is drawn. The token that completes a
// trigger has to leave the grammar at a place where it can go on: it is fed the trigger and whatever the token has
// behind it, and where it refuses that, the token is banned and the draw repeated. Until then any text goes, and the
// grammar costs nothing. Thoughts with a budget may quote triggers: none counts in them, but for one at the beginning
// of a line of thoughts that the prompt has begun, for a model that does not know that it thinks may call there.
//
// Thoughts that have spent their budget are ended: the tokens of their end come next whatever the logits are, unless
// a grammar does not allow them.
class Sampler {
 public:
  // `vocabulary` outlives the sampler.
  Sampler(const Sampling& sampling, const Vocabulary& vocabulary, int32_t context);

  // Takes a token into account that is in the sequence: of the prompt, or drawn.
  void accept(Token token);

  // Draws the next token, and the grammar goes on with it; -1 when no token can be drawn. Changes the logits. Fills in
  // `told` where the request asks for likelihoods.
  Token draw(RowLogits row, TokenList* told = nullptr);

  // Takes the next token into account that an earlier sampler drew and accepted; then all but state() is as if this one
  // had. False, and the sampler is of no use then, where the grammar does not allow it.
  bool replay(Token token);

  // Thoughts with a budget may yet go on, or begin; and they are to end as if they had spent it.
  bool has_thoughts_ahead() const { return thoughts_.may_go_on(); }
  void end_thoughts() { thoughts_.end(); }

  // What cannot be told by the tokens.
  SamplerState state() const;
  void restore(const SamplerState& state);

  // Why draw() found no token.
  enum class Lack {
    kChoice,        // all are banned
    kNumber,        // the logits are not numbers
    kContinuation,  // the text is complete, and nothing may follow
    kAllowed,       // the text is not complete, and no token goes on as the grammar wants
    kTime,          // the grammar takes too long to follow
  };
  Lack lack() const { return lack_; }

 private:
  // What a draw leaves behind to be told of; one for all sequences of a thread: it may take kilobytes.
  struct Workspace {
    Candidates candidates;
    std::vector<float> weights;
    std::vector<float> own;  // logits as the model gave them
    RowLogits row{nullptr};
    float* logits = nullptr;    // of the row, changed as the request wants; null: only the picked ones are known
    Candidates picked;          // the same of these, of which the draw may go by those
    float bound = 0;            // that are larger than this
    std::vector<Token> banned;  // by this draw
  };
  bool tells() const { return sampling_.n_probs >= 0; }
  bool is_argmax() const { return order_.is_best_of_row && !grammar_; }
  bool needs_all() const;
  bool pick(Workspace& now);
  void see_all(Workspace& now);
  bool change(Logits& logits);
  static void ban(Token token, Workspace& now);
  Token choose(Workspace& now);
  bool follow(Token token);
  Token ending();
  bool begin_grammar(Token token);
  bool begin_grammar(const std::string& begun);
  Token lacking(Lack lack);
  Lack lack_of_choice(Workspace& now);
  void take_best(size_t k, Workspace& now);
  void select(Workspace& now);
  void select_allowed(Workspace& now);
  void select_best_allowed(Workspace& now);
  size_t n_candidates() const;
  TokenList likelihood(Token token, const Workspace& now) const;

  const Sampling sampling_;
  const Vocabulary& vocabulary_;
  Random random_;
  const SamplingOrder order_;
  const std::unique_ptr<Chooser> chooser_;
  const bool needs_all_;              // logits, whatever was picked of them
  std::unique_ptr<Grammar> grammar_;  // null: any text
  Trigger trigger_;
  Trigger line_trigger_;  // of lines of thoughts: triggers behind a line's end
  ThoughtBudget thoughts_;
  Lack lack_ = Lack::kChoice;
};

}  // namespace corosrv
