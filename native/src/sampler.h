// Logits to token: bias, penalties, cut-offs, temperature, seed.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "backend.h"
#include "grammar.h"
#include "top_k.h"
#include "types.h"

namespace corosrv {

// SplitMix64 (Steele, Lea, Flood 2014): eight bytes of state where std::mt19937 has 2,500, and the same numbers on
// every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // In [0, 1), of 24 bits.
  float next();

 private:
  uint64_t state_;
};

// Draws one sequence's tokens. The same seed and the same logits give the same tokens, whatever else is decoded. Used
// by one thread at a time.
//
// The full vocabulary is turned into candidates only when top_k is off; everything else works on the k best, which
// come straight from the logits. A grammar filters those k, and the vocabulary only where it refuses all of them,
// before the k best are chosen again: what is drawn is the model's own choice wherever the grammar allows one of its k
// best tokens. Greedy, it is the best token that the grammar allows in either case.
class Sampler {
 public:
  // `vocabulary` outlives the sampler.
  Sampler(const Sampling& sampling, const Vocabulary& vocabulary, int32_t context);

  // Takes a token into account that is in the sequence: of the prompt, or drawn.
  void accept(Token token);

  // Draws the next token, and the grammar goes on with it; -1 when no token can be drawn. Changes `logits`.
  Token draw(float* logits);

  // Why draw() found no token.
  enum class Lack {
    kChoice,        // all are banned, or the logits are not numbers
    kContinuation,  // the text is complete, and nothing may follow
    kAllowed,       // the text is not complete, and no token goes on as the grammar wants
    kTime,          // the grammar takes too long to follow
  };
  Lack lack() const { return lack_; }

 private:
  bool has_penalties() const;
  void apply_biases(float* logits) const;
  void apply_penalties(float* logits) const;
  // Candidates are in descending order of logit.
  void select(const float* logits, std::vector<Candidate>& candidates) const;
  void select_allowed(float* logits, std::vector<Candidate>& candidates);
  void select_best_allowed(float* logits, std::vector<Candidate>& candidates);
  size_t n_candidates() const;
  void keep_typical(std::vector<Candidate>& candidates) const;
  void keep_top_p(std::vector<Candidate>& candidates) const;
  void keep_min_p(std::vector<Candidate>& candidates) const;
  Token choose(std::vector<Candidate>& candidates);
  Token pick(const std::vector<Candidate>& candidates);

  const Sampling sampling_;
  const Vocabulary& vocabulary_;
  const size_t window_size_;
  Random random_;
  const std::unique_ptr<Grammar> grammar_;  // null: any text
  Lack lack_ = Lack::kChoice;
  std::vector<Token> window_;                  // what the penalties look back on: a ring once it is full
  size_t oldest_ = 0;                          // in window_
  std::unordered_map<Token, int32_t> counts_;  // of the tokens in it
};

}  // namespace corosrv
