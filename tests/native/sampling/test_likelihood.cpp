#include <cmath>
#include <limits>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "sampling/likelihood.h"
#include "sampling/random.h"

namespace corosrv {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_near(double a, double b, double tolerance = 1e-5) { return std::abs(a - b) <= tolerance * (1 + std::abs(b)); }

double exact_log_sum_exp(const std::vector<float>& logits) {
  double most = -kInfinity;
  for (const float logit : logits) most = std::max<double>(most, logit);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

TEST("the sum of exponentials is the exact one, whatever the size and the spread") {
  Random random(5);
  for (const size_t size : {1u, 2u, 15u, 16u, 17u, 257u, 5000u}) {
    for (const float spread : {0.001f, 1.0f, 30.0f, 1000.0f}) {
      std::vector<float> logits(size);
      for (float& logit : logits) logit = spread * (random.next() - 0.7f);

      CHECK(is_near(log_sum_exp(logits.data(), size), exact_log_sum_exp(logits), 2e-6));
    }
  }
}

TEST("what is no number, or banned, is no part of the sum") {
  std::vector<float> logits(100, -kInfinity);
  logits[3] = 2;
  logits[40] = kNan;
  logits[99] = 2;

  CHECK(is_near(log_sum_exp(logits.data(), logits.size()), 2 + std::log(2.0)));
  CHECK_EQ(log_sum_exp(logits.data(), 3), -kInfinity);
}

const ByteVocabulary kVocabulary;

std::vector<float> row(float all) { return std::vector<float>(static_cast<size_t>(kVocabulary.size()), all); }

TEST("a token is told of with its probability and those of the likeliest, which may be others") {
  std::vector<float> logits = row(-kInfinity);
  logits['a'] = std::log(0.5f);
  logits['b'] = std::log(0.3f);
  logits[ByteVocabulary::kEnd] = std::log(0.2f);

  const TokenList told = likelihood_of('b', logits.data(), 3, kVocabulary);

  REQUIRE(told.entries().size() == 4);
  const auto& entries = told.entries();
  CHECK(entries[0].token == 'b' && entries[0].n_top == 3);
  CHECK(is_near(entries[0].logprob, std::log(0.3)));
  CHECK(entries[1].token == 'a' && is_near(entries[1].logprob, std::log(0.5)));
  CHECK(entries[2].token == 'b' && entries[3].token == ByteVocabulary::kEnd);
  CHECK_EQ(told.pieces(), "bab");  // the end token adds nothing
}

TEST("every logprob is finite and none is above 0, whatever the logits are") {
  for (const float odd : {kNan, -kInfinity, kInfinity, 3e38f, -3e38f}) {
    std::vector<float> logits = row(0.0f);
    logits['x'] = odd;
    for (const Token token : {Token{'x'}, Token{'y'}}) {
      const TokenList told = likelihood_of(token, logits.data(), 5, kVocabulary);
      for (const auto& entry : told.entries()) {
        CHECK(std::isfinite(entry.logprob) && entry.logprob <= 0 && entry.logprob >= kLeastLogprob);
      }
    }
  }
}

TEST("of what was drawn from, only its candidates are told of, best first") {
  const std::vector<Candidate> candidates = {{'a', 9}, {'b', 8}, {'c', 7}};

  const TokenList told = likelihood_among('c', candidates, {1.0f, 6.0f, 3.0f}, 5, kVocabulary);

  REQUIRE(told.entries().size() == 4);
  CHECK_EQ(told.pieces(), "cbca");
  CHECK(is_near(told.entries()[0].logprob, std::log(0.3)));
  CHECK(is_near(told.entries()[1].logprob, std::log(0.6)));
  CHECK(is_near(told.entries()[3].logprob, std::log(0.1)));
}

}  // namespace
}  // namespace corosrv
