// Log-probabilities of tokens, from a model's logits.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "model/backend.h"
#include "model/token_list.h"
#include "model/types.h"
#include "sampling/top_k.h"

namespace corosrv {

// What a token adds to the text of an answer: the one that ends it adds nothing, whatever it is spelled like.
inline std::string_view added_text(const Vocabulary& vocabulary, Token token) {
  return vocabulary.is_end_of_generation(token) ? std::string_view() : vocabulary.text(token);
}

// What is told of a token whose probability is too small for a number, or none at all: finite, as JSON wants it.
constexpr float kLeastLogprob = -9999.0f;

// ln(sum(exp(logit))): by how much a logit exceeds its log-probability. Logits of -infinity and NaN are nothing.
float log_sum_exp(const float* logits, size_t size);

// `token` and the `n_top` likeliest, in the distribution that the logits of a whole vocabulary stand for.
TokenList likelihood_of(Token token, const float* logits, size_t n_top, const Vocabulary& vocabulary);

// The same, where each of `candidates` is as likely as its weight says, and all others never come.
TokenList likelihood_among(Token token, const std::vector<Candidate>& candidates, const std::vector<float>& weights,
                           size_t n_top, const Vocabulary& vocabulary);

}  // namespace corosrv
