#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "check.h"
#include "sampling/top_k.h"

namespace corosrv {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::vector<std::pair<Token, float>> sorted(const std::vector<float>& logits) {
  std::vector<std::pair<Token, float>> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kMinusInfinity) all.emplace_back(static_cast<Token>(i), logits[i]);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

std::vector<float> random_logits(std::mt19937& random, size_t size) {
  std::vector<float> logits(size);
  const auto values = 2 + random() % 300;  // few values make ties
  const auto holes = random() % 3;         // none, some, most
  for (float& logit : logits) {
    logit = static_cast<float>(random() % values) - 20.0f;
    const auto hole = random() % 10;
    if (hole < holes * 4) logit = hole % 2 == 0 ? kNan : kMinusInfinity;
  }
  return logits;
}

void check_against_sort(const std::vector<float>& logits, size_t k) {
  const auto expected = sorted(logits);
  std::vector<Candidate> found = {{7, 7.0f}};  // is emptied first

  top_k(logits.data(), logits.size(), k, found);

  CHECK_EQ(found.size(), std::min(k, expected.size()));
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    CHECK_EQ(found[i].token, expected[i].first);
    CHECK_EQ(found[i].logit, expected[i].second);
  }
  CHECK_EQ(argmax(logits.data(), logits.size()), expected.empty() ? -1 : expected[0].first);
}

TEST("top_k and argmax agree with a full sort on random logits") {
  std::mt19937 random(2);
  for (const size_t size : {1u, 2u, 15u, 127u, 128u, 129u, 255u, 256u, 1000u, 4096u, 5001u}) {
    for (int round = 0; round < 12; ++round) {
      const std::vector<float> logits = random_logits(random, size);
      for (const size_t k : {size_t{1}, size_t{2}, size_t{7}, size_t{40}, size / 2 + 1, size, size + 5}) {
        check_against_sort(logits, k);
      }
    }
  }
}

TEST("the best is found wherever it stands") {
  for (const size_t size : {128u, 300u}) {
    for (size_t at = 0; at < size; ++at) {
      std::vector<float> logits(size, -3.0f);
      logits[at] = 1.0f;

      CHECK_EQ(argmax(logits.data(), size), static_cast<Token>(at));
      check_against_sort(logits, 3);
    }
  }
}

TEST("among equals the lowest token comes first") {
  const std::vector<float> logits(700, 0.5f);

  check_against_sort(logits, 5);
  CHECK_EQ(argmax(logits.data(), logits.size()), 0);
}

TEST("NaN and minus infinity are never found") {
  std::vector<float> logits(400, kNan);
  check_against_sort(logits, 3);
  CHECK_EQ(argmax(logits.data(), logits.size()), -1);

  std::fill(logits.begin(), logits.end(), kMinusInfinity);
  check_against_sort(logits, 400);
  CHECK_EQ(argmax(logits.data(), logits.size()), -1);

  logits[130] = std::numeric_limits<float>::lowest();
  check_against_sort(logits, 3);
  CHECK_EQ(argmax(logits.data(), logits.size()), 130);
}

}  // namespace
}  // namespace corosrv
