// The same logits through libllama's samplers and through ours: the same candidates are left, with the same
// probabilities.
#include <llama.h>

#include <cmath>
#include <map>
#include <memory>

#include "check.h"
#include "sampling/chooser.h"
#include "sampling/cutoffs.h"
#include "sampling/dry.h"
#include "sampling/penalties.h"
#include "sampling/random.h"
#include "sampling/temperature.h"
#include "sampling/xtc.h"

namespace corosrv {
namespace {

constexpr Token kTokens = 500;

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using Theirs = std::unique_ptr<llama_sampler, FreeSampler>;
using Distribution = std::map<Token, float>;

Candidates random_candidates(Random& random, float spread) {
  std::vector<float> logits(kTokens);
  for (float& logit : logits) logit = spread * std::log(random.next() + 1e-6f);
  Candidates candidates;
  top_k(logits.data(), logits.size(), logits.size(), candidates);
  return candidates;
}

Distribution normalised(const std::vector<std::pair<Token, float>>& weighed) {
  float total = 0;
  for (const auto& [token, weight] : weighed) total += weight;
  Distribution distribution;
  for (const auto& [token, weight] : weighed) {
    if (weight > 0) distribution[token] = weight / total;
  }
  return distribution;
}

Distribution left_by(llama_sampler* sampler, const Candidates& candidates) {
  std::vector<llama_token_data> data;
  for (const auto& [token, logit] : candidates) data.push_back({token, logit, 0});
  llama_token_data_array array{data.data(), data.size(), -1, false};
  llama_sampler_apply(sampler, &array);
  float most = -INFINITY;
  for (size_t i = 0; i < array.size; ++i) most = std::max(most, array.data[i].logit);
  std::vector<std::pair<Token, float>> weighed;
  for (size_t i = 0; i < array.size; ++i) weighed.emplace_back(array.data[i].id, std::exp(array.data[i].logit - most));
  return normalised(weighed);
}

Distribution left_by(Stage& stage, Candidates candidates) {
  Random random(1);
  stage.apply(candidates, random);
  std::vector<float> weights;
  weigh(candidates, weights);
  std::vector<std::pair<Token, float>> weighed;
  for (size_t i = 0; i < weights.size(); ++i) weighed.emplace_back(candidates[i].token, weights[i]);
  return normalised(weighed);
}

// What a cut leaves out may be a candidate on its edge: sums are rounded in another order.
void check_same(const Distribution& ours, const Distribution& theirs) {
  float away = 0;
  for (const auto& [token, probability] : theirs) {
    const auto found = ours.find(token);
    away += std::abs(probability - (found == ours.end() ? 0 : found->second));
  }
  for (const auto& [token, probability] : ours) away += theirs.count(token) == 0 ? probability : 0;
  CHECK(away < 1e-3f);
}

void compare(Stage& ours, llama_sampler* theirs_raw) {
  const Theirs theirs(theirs_raw);
  Random random(7);
  for (const float spread : {0.3f, 1.0f, 4.0f}) {
    for (int round = 0; round < 20; ++round) {
      const Candidates candidates = random_candidates(random, spread);
      check_same(left_by(ours, candidates), left_by(theirs.get(), candidates));
    }
  }
}

TEST("cuts leave what libllama's leave") {
  for (const size_t min_keep : {0u, 1u, 7u}) {
    for (const float p : {0.05f, 0.3f, 0.8f, 0.99f}) {
      TopP top_p(p, min_keep);
      MinP min_p(p, min_keep);
      TypicalP typical(p, min_keep);
      compare(top_p, llama_sampler_init_top_p(p, min_keep));
      compare(min_p, llama_sampler_init_min_p(p, min_keep));
      compare(typical, llama_sampler_init_typical(p, min_keep));
    }
    for (const float threshold : {0.001f, 0.01f, 0.1f, 0.5f}) {
      Xtc xtc(1, threshold, min_keep);
      compare(xtc, llama_sampler_init_xtc(1, threshold, min_keep, 1));
    }
  }
  for (const float n : {0.1f, 1.0f, 2.0f}) {
    TopNSigma sigma(n);
    compare(sigma, llama_sampler_init_top_n_sigma(n));
  }
  TopK k(17);
  compare(k, llama_sampler_init_top_k(17));
}

TEST("temperatures, fixed and dynamic, are libllama's") {
  for (const float temperature : {0.0f, 0.2f, 0.8f, 1.5f}) {
    for (const float range : {0.0f, 0.1f, 0.5f}) {
      for (const float exponent : {0.5f, 1.0f, 2.0f}) {
        Temperature ours(temperature, range, exponent);
        compare(ours, llama_sampler_init_temp_ext(temperature, range, exponent));
      }
    }
  }
}

template <typename Ours>
void compare_history(Ours& ours, llama_sampler* theirs_raw, Random& random) {
  const Theirs theirs(theirs_raw);
  for (int i = 0; i < 120; ++i) {
    const auto token = static_cast<Token>(random.next() * 6);
    ours.accept(token);
    llama_sampler_accept(theirs.get(), token);
    if (i % 10 != 9) continue;
    const Candidates candidates = random_candidates(random, 1);
    check_same(left_by(ours, candidates), left_by(theirs.get(), candidates));
  }
}

TEST("penalties are libllama's") {
  Random random(2);
  for (const int32_t last_n : {1, 16, 64}) {
    Sampling sampling;
    sampling.repeat_last_n = last_n;
    sampling.repeat_penalty = 1.3f;
    sampling.frequency_penalty = 0.2f;
    sampling.presence_penalty = 0.4f;
    Penalties ours(sampling, 1000);
    compare_history(ours, llama_sampler_init_penalties(kTokens, last_n, 1.3f, 0.2f, 0.4f), random);
  }
}

// libllama's breakers need one of its vocabularies; ours are compared with their definition in test_stages.cpp.
TEST("DRY without breakers is libllama's") {
  Random random(3);
  for (const int32_t last_n : {4, 30, 1000}) {
    for (const int32_t allowed : {1, 2, 5}) {
      Sampling sampling;
      sampling.dry_multiplier = 0.7f;
      sampling.dry_base = 1.6f;
      sampling.dry_allowed_length = allowed;
      sampling.dry_penalty_last_n = last_n;
      Dry ours(sampling, 1000);
      llama_sampler* theirs = llama_sampler_init_dry(nullptr, 0.7f, 1.6f, allowed, last_n, nullptr, 0);
      compare_history(ours, theirs, random);
    }
  }
}

// How often each token is drawn, after a warm-up in which state settles.
template <typename DrawOnce>
std::vector<double> frequencies(DrawOnce draw_once) {
  constexpr int kDraws = 20000;
  std::vector<double> seen(20, 0.0);
  for (int i = 0; i < kDraws + 500; ++i) {
    const Token token = draw_once();
    if (i >= 500) seen[static_cast<size_t>(std::min<Token>(token, 19))] += 1.0 / kDraws;
  }
  return seen;
}

void compare_draws(const Sampling& sampling, llama_sampler* theirs_raw) {
  const Theirs theirs(theirs_raw);
  Candidates candidates;
  for (Token token = 0; token < kTokens; ++token) {
    candidates.push_back({token, -1.2f * std::log(static_cast<float>(token) + 1)});
  }
  Random random(11);
  const std::unique_ptr<Chooser> chooser = make_chooser(sampling, false, kTokens);
  std::vector<float> weights;
  const auto ours = frequencies([&] {
    Candidates left = candidates;
    const size_t place = chooser->choose(left, weights, random);
    chooser->accept();
    return left[place].token;
  });
  const auto expected = frequencies([&] {
    std::vector<llama_token_data> data;
    for (const auto& [token, logit] : candidates) data.push_back({token, logit, 0});
    llama_token_data_array array{data.data(), data.size(), -1, false};
    llama_sampler_apply(theirs.get(), &array);
    const Token token = array.data[array.selected].id;
    llama_sampler_accept(theirs.get(), token);
    return token;
  });
  for (size_t i = 0; i < ours.size(); ++i) CHECK(std::abs(ours[i] - expected[i]) < 0.02);
}

TEST("mirostat, adaptive-p and the plain draw come to what libllama draws, as often") {
  for (const float tau : {1.5f, 3.0f, 5.0f}) {
    Sampling sampling;
    sampling.mirostat_tau = tau;
    sampling.mirostat = 1;
    compare_draws(sampling, llama_sampler_init_mirostat(kTokens, 5, tau, 0.1f, 100));
    sampling.mirostat = 2;
    compare_draws(sampling, llama_sampler_init_mirostat_v2(5, tau, 0.1f));
  }
  for (const float target : {0.05f, 0.2f, 0.6f}) {
    Sampling sampling;
    sampling.adaptive_target = target;
    compare_draws(sampling, llama_sampler_init_adaptive_p(target, 0.9f, 5));
  }
  compare_draws(Sampling(), llama_sampler_init_dist(5));
}

}  // namespace
}  // namespace corosrv
