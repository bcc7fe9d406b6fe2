// What stands between a model's logits and the token that is drawn: small steps, in the order that a request names.
#pragma once

#include <unordered_map>
#include <vector>

#include "model/types.h"
#include "sampling/random.h"
#include "sampling/top_k.h"

namespace corosrv {

// In descending order of logit; never empty.
using Candidates = std::vector<Candidate>;

// One sequence's; keeps what it has to remember of its tokens. Used by one thread at a time.
class Stage {
 public:
  virtual ~Stage() = default;

  // Drops candidates or changes their logits.
  virtual void apply(Candidates& candidates, Random& random) = 0;

  // A token of the sequence: of the prompt, or drawn.
  virtual void accept(Token) {}
};

// Where a token's logit is: in the row of the whole vocabulary, or among the candidates that are left.
class Logits {
 public:
  virtual ~Logits() = default;
  // Null where the token is no candidate any more.
  virtual float* find(Token token) = 0;
};

class LogitRow final : public Logits {
 public:
  explicit LogitRow(float* logits) : logits_(logits) {}
  float* find(Token token) override { return &logits_[token]; }

 private:
  float* const logits_;
};

// Among candidates in any order, which stay where they are as long as this object lives.
class ListedLogits final : public Logits {
 public:
  explicit ListedLogits(Candidates& candidates) {
    for (Candidate& candidate : candidates) places_.emplace(candidate.token, &candidate.logit);
  }
  float* find(Token token) override {
    const auto place = places_.find(token);
    return place == places_.end() ? nullptr : place->second;
  }

 private:
  std::unordered_map<Token, float*> places_;
};

// A stage that changes the logits of few tokens: it costs the same whether a whole vocabulary is left or ten
// candidates, and so comes before the vocabulary is cut down to candidates where the order allows.
class SparseStage : public Stage {
 public:
  virtual void change(Logits& logits) = 0;
  // Whether it may make a logit larger.
  virtual bool may_raise() const = 0;
  void apply(Candidates& candidates, Random& random) final;
};

// exp(logit - the largest one): probabilities up to a common factor.
void weigh(const Candidates& candidates, std::vector<float>& weights);

}  // namespace corosrv
