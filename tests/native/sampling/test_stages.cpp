#include <cmath>
#include <map>
#include <set>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/tasks.h"
#include "sampling/adaptive_p.h"
#include "sampling/cutoffs.h"
#include "sampling/dry.h"
#include "sampling/mirostat.h"
#include "sampling/penalties.h"
#include "sampling/sampling_order.h"
#include "sampling/temperature.h"
#include "sampling/xtc.h"

namespace corosrv {
namespace {

using Tokens = std::vector<Token>;

const ByteVocabulary kVocabulary({"abc", "c\n", "\n\n", "end"});

Candidates distribution(const std::vector<float>& probabilities) {
  Candidates candidates;
  for (const float probability : probabilities) {
    candidates.push_back({static_cast<Token>(candidates.size()), std::log(probability)});
  }
  return candidates;
}

Tokens left_by(Stage&& stage, Candidates candidates, uint64_t seed = 1) {
  Random random(seed);
  stage.apply(candidates, random);
  Tokens tokens;
  for (const Candidate& candidate : candidates) tokens.push_back(candidate.token);
  return tokens;
}

const Candidates kHalves = distribution({0.5f, 0.25f, 0.15f, 0.1f});

TEST("min_keep holds against every cut that has it") {
  CHECK_EQ(left_by(TopP(0.1f, 0), kHalves), (Tokens{0}));
  CHECK_EQ(left_by(TopP(0.1f, 3), kHalves), (Tokens{0, 1, 2}));
  CHECK_EQ(left_by(MinP(0.9f, 0), kHalves), (Tokens{0}));
  CHECK_EQ(left_by(MinP(0.9f, 2), kHalves), (Tokens{0, 1}));
  CHECK_EQ(left_by(MinP(0.9f, 99), kHalves), (Tokens{0, 1, 2, 3}));
  CHECK_EQ(left_by(TypicalP(0.1f, 0), kHalves), (Tokens{1}));
  CHECK_EQ(left_by(TypicalP(0.1f, 2), kHalves), (Tokens{0, 1}));
  CHECK_EQ(left_by(Xtc(1, 0.09f, 0), kHalves), (Tokens{3}));
  CHECK_EQ(left_by(Xtc(1, 0.09f, 2), kHalves), (Tokens{0, 1, 2, 3}));
}

TEST("XTC leaves of the likely candidates the last, as often as its probability says") {
  CHECK_EQ(left_by(Xtc(1, 0.12f, 0), kHalves), (Tokens{2, 3}));
  CHECK_EQ(left_by(Xtc(1, 0.3f, 0), kHalves), (Tokens{0, 1, 2, 3}));  // one likely candidate gives way to none
  int n_excluded = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) n_excluded += left_by(Xtc(0.3f, 0.2f, 0), kHalves, seed)[0] == 1 ? 1 : 0;
  CHECK(n_excluded > 230 && n_excluded < 370);
}

TEST("top_n_sigma leaves what is within n deviations of the best, among candidates and in a row") {
  const Candidates candidates = {{0, 10}, {1, 8}, {2, 4}, {3, -2}};  // deviation 4.58
  std::vector<float> row = {10, 8, 4, -2, -std::numeric_limits<float>::infinity()};

  CHECK_EQ(left_by(TopNSigma(1), candidates), (Tokens{0, 1}));
  CHECK_EQ(left_by(TopNSigma(0.2f), candidates), (Tokens{0}));
  CHECK_EQ(left_by(TopNSigma(3), candidates), (Tokens{0, 1, 2, 3}));
  CHECK(std::abs(least_by_sigma(row.data(), row.size(), 1) - (10 - std::sqrt(21.0f))) < 1e-5f);
}

TEST("the dynamic temperature goes from its least to its most with the entropy") {
  const auto ratio = [](Candidates candidates) {
    const float before = candidates[0].logit - candidates.back().logit;
    Random random(1);
    Temperature(1.0f, 0.5f, 1.0f).apply(candidates, random);
    return before / (candidates[0].logit - candidates.back().logit);
  };

  CHECK(std::abs(ratio(distribution({0.50001f, 0.49999f})) - 1.5f) < 1e-3f);
  CHECK(std::abs(ratio(distribution({0.999999f, 1e-6f})) - 0.5f) < 1e-3f);
}

// Penalties by looking at all places: DRY's definition, without the tricks.
std::map<Token, float> dry_by_hand(const Tokens& text, const Sampling& sampling, const std::set<Token>& breakers) {
  size_t most = 0;
  while (most < text.size() && breakers.count(text[text.size() - 1 - most]) == 0) ++most;
  const auto allowed = static_cast<size_t>(sampling.dry_allowed_length);
  std::map<Token, size_t> longest;
  for (size_t end = 1; end < text.size(); ++end) {  // text[end] followed what ends before it
    size_t length = 0;
    while (length < end && text[end - 1 - length] == text[text.size() - 1 - length]) ++length;
    length = std::min(length, most);
    if (length >= allowed) longest[text[end]] = std::max(longest[text[end]], length);
  }
  std::map<Token, float> penalties;
  for (const auto& [token, length] : longest) {
    if (breakers.count(token) > 0) continue;
    penalties[token] = sampling.dry_multiplier * std::pow(sampling.dry_base, static_cast<float>(length - allowed));
  }
  return penalties;
}

TEST("DRY punishes what would go on with a repetition, as much as its definition says") {
  Random random(4);
  Sampling sampling;
  sampling.dry_multiplier = 0.8f;
  sampling.dry_penalty_last_n = -1;
  sampling.dry_breakers = std::make_shared<const DryBreakers>(std::vector<std::string>{"e"}, kVocabulary);
  for (int round = 0; round < 300; ++round) {
    sampling.dry_allowed_length = 1 + round % 3;
    Dry dry(sampling, 1000);
    Tokens text;
    for (int i = 0; i < 5 + round % 60; ++i) {
      text.push_back('a' + static_cast<Token>(random.next() * 5));
      dry.accept(text.back());
    }
    std::vector<float> row(static_cast<size_t>(kVocabulary.size()), 0.0f);
    LogitRow logits(row.data());
    dry.change(logits);

    const auto expected = dry_by_hand(text, sampling, {'e', ByteVocabulary::kFirstWord + 3});
    for (Token token = 0; token < kVocabulary.size(); ++token) {
      const auto found = expected.find(token);
      const float penalty = found == expected.end() ? 0 : found->second;
      CHECK(std::abs(row[static_cast<size_t>(token)] + penalty) <= 1e-5f * (1 + penalty));
    }
  }
}

TEST("a breaker may be part of a token, or begin in one and end in the next") {
  const DryBreakers breakers({"c\n\n"}, kVocabulary);
  const auto longest = [&](const Tokens& tokens) {
    return breakers.longest(tokens[0], tokens.size() - 1, [&](size_t i) { return tokens[i + 1]; });
  };
  const Token abc = ByteVocabulary::kFirstWord;

  CHECK_EQ(longest({abc, '\n', '\n'}), 2);
  CHECK_EQ(longest({abc + 1, '\n'}), 1);
  CHECK_EQ(longest({abc, '\n', 'x'}), -1);
  CHECK_EQ(longest({abc, '\n'}), -1);
  CHECK_EQ(longest({'x'}), -1);
  CHECK(DryBreakers({"nd"}, kVocabulary).is_breaker(abc + 3));
}

TEST("windows are never longer than the context, whatever is asked for") {
  CHECK_EQ(window_size(250'000'000, 4096), size_t{4096});
  CHECK_EQ(window_size(-1, 4096), size_t{4096});
  CHECK_EQ(window_size(0, 4096), size_t{0});
}

TEST("stages that change few logits do it in the row where the order allows, and else among the candidates") {
  Sampling sampling;
  sampling.repeat_penalty = 1.1f;
  sampling.dry_multiplier = 1;
  const SamplingOrder usual(sampling, 100);
  CHECK_EQ(usual.on_row.size(), size_t{2});
  CHECK_EQ(usual.k, size_t{40});

  sampling.samplers = {SamplerKind::kTemperature, SamplerKind::kTopK, SamplerKind::kPenalties};
  const SamplingOrder late(sampling, 100);
  CHECK_EQ(late.on_row.size(), size_t{0});
  CHECK_EQ(late.k, size_t{0});
  CHECK_EQ(late.on_candidates.size(), size_t{3});
}

TEST("greedy draws the best of the row unless something may take it away") {
  Sampling sampling = greedy();
  CHECK(SamplingOrder(sampling, 100).is_best_of_row);
  sampling.dynatemp_range = 0.5f;
  CHECK(!SamplingOrder(sampling, 100).is_greedy);
  sampling = greedy();
  sampling.xtc_probability = 0.5f;
  CHECK(SamplingOrder(sampling, 100).is_greedy && !SamplingOrder(sampling, 100).is_best_of_row);
  sampling.xtc_threshold = 0.6f;
  CHECK(SamplingOrder(sampling, 100).is_best_of_row);
}

// Surprise in bits, averaged over many draws from the same distribution.
double mean_surprise(Chooser& chooser, const Candidates& candidates) {
  Random random(9);
  std::vector<float> weights;
  double sum = 0;
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    Candidates left = candidates;
    const size_t place = chooser.choose(left, weights, random);
    double total = 0;
    for (const float weight : weights) total += weight;
    if (i >= kDraws / 4) sum -= std::log2(weights[place] / total);
    chooser.accept();
  }
  return sum / (kDraws - kDraws / 4);
}

TEST("both mirostats keep the surprise near its target") {
  std::vector<float> zipf;
  for (int i = 1; i <= 500; ++i) zipf.push_back(1.0f / std::pow(static_cast<float>(i), 1.1f));
  const Candidates candidates = distribution(zipf);
  for (const float tau : {2.0f, 4.0f, 6.0f}) {
    Mirostat first(tau, 0.1f, 500);
    MirostatV2 second(tau, 0.1f);

    CHECK(std::abs(mean_surprise(first, candidates) - tau) < 0.5);
    CHECK(std::abs(mean_surprise(second, candidates) - tau) < 0.5);
  }
}

TEST("adaptive_p prefers the candidate whose probability is nearest to the target, and moves against its average") {
  AdaptiveP chooser(0.25f, 0.9f);
  Random random(3);
  std::vector<float> weights;
  Candidates candidates = kHalves;
  chooser.choose(candidates, weights, random);

  CHECK(weights[1] == 1.0f);
  CHECK(weights[0] < weights[2]);
}

}  // namespace
}  // namespace corosrv
