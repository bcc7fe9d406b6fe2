// Draws from the largest logits of a row, which a device has picked: they are those from all logits.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "grammar/grammars.h"
#include "sampling/sampler.h"

namespace corosrv {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kContext = 64;

const ByteVocabulary kVocabulary;
const auto kSize = static_cast<size_t>(kVocabulary.size());

using Dice = std::mt19937;

bool chance(Dice& dice, double probability) { return std::bernoulli_distribution(probability)(dice); }
int between(Dice& dice, int least, int most) { return std::uniform_int_distribution<int>(least, most)(dice); }
float between(Dice& dice, float least, float most) { return std::uniform_real_distribution<float>(least, most)(dice); }

// One row whose largest logits a device has picked: which of equal ones is by chance, and so is their order.
class PickingBackend final : public Backend {
 public:
  PickingBackend(const std::vector<float>& logits, size_t n_picked, Dice& dice) : logits_(logits), tokens_(kSize) {
    std::iota(tokens_.begin(), tokens_.end(), 0);
    std::shuffle(tokens_.begin(), tokens_.end(), dice);
    // A NaN counts as the largest, as it does where floats are sorted by their bits.
    const auto key = [&](Token token) {
      const float logit = logits_[static_cast<size_t>(token)];
      return std::isnan(logit) ? std::make_pair(1, 0.0f) : std::make_pair(0, logit);
    };
    std::stable_sort(tokens_.begin(), tokens_.end(), [&](Token a, Token b) { return key(a) > key(b); });
    tokens_.resize(n_picked);
    std::shuffle(tokens_.begin(), tokens_.end(), dice);
    for (const Token token : tokens_) picked_.push_back(logits_[static_cast<size_t>(token)]);
  }

  const Vocabulary& vocabulary() const override { return kVocabulary; }
  const ModelInfo& info() const override { return info_; }
  Status decode(const std::vector<Row>&) override { return Status::ok(); }
  float* logits(size_t) override {
    ++n_fetched;
    return logits_.data();
  }
  PickedLogits picked(size_t) override { return {tokens_.data(), picked_.data(), picked_.size()}; }
  void forget(int32_t, Extent) override {}
  bool has_snapshots() const override { return false; }
  Snapshot save(int32_t, size_t) override { return {}; }
  bool load(int32_t, const Snapshot&, Extent) override { return false; }

  int n_fetched = 0;

 private:
  const ModelInfo info_;
  std::vector<float> logits_;
  std::vector<Token> tokens_;
  std::vector<float> picked_;
};

struct Drawn {
  Token token;
  Sampler::Lack lack;
  SamplerState state;
  std::string pieces;
  std::vector<float> logprobs;

  bool operator==(const Drawn& other) const {
    return token == other.token && (token >= 0 || lack == other.lack) && state == other.state &&
           pieces == other.pieces && logprobs == other.logprobs;
  }
};

Drawn draw(Sampler& sampler, const RowLogits& row) {
  TokenList told;
  const Token token = sampler.draw(row, &told);
  Drawn drawn{token, sampler.lack(), sampler.state(), told.pieces(), {}};
  for (const Likelihood& entry : told.entries()) drawn.logprobs.push_back(entry.logprob);
  if (token >= 0) sampler.accept(token);
  return drawn;
}

Sampling any_sampling(Dice& dice) {
  const auto sometimes = [&](double probability, float least, float most, float otherwise) {
    return chance(dice, probability) ? between(dice, least, most) : otherwise;
  };
  Sampling sampling;
  sampling.seed = static_cast<uint32_t>(dice());
  sampling.temperature = sometimes(0.7, 0.2f, 3.0f, 0.0f);
  sampling.top_k = chance(dice, 0.85) ? between(dice, 1, 40) : 0;
  sampling.top_p = sometimes(0.5, 0.1f, 1.0f, 1.0f);
  sampling.min_p = sometimes(0.3, 0.0f, 0.5f, 0.0f);
  sampling.typical_p = sometimes(0.2, 0.2f, 1.0f, 1.0f);
  sampling.repeat_penalty = sometimes(0.4, 0.9f, 3.0f, 1.0f);
  sampling.presence_penalty = sometimes(0.3, -0.2f, 4.0f, 0.0f);
  sampling.frequency_penalty = sometimes(0.3, -0.2f, 4.0f, 0.0f);
  sampling.dry_multiplier = sometimes(0.3, 0.0f, 4.0f, 0.0f);
  sampling.dry_allowed_length = between(dice, 0, 2);
  sampling.top_n_sigma = sometimes(0.05, 0.5f, 3.0f, -1.0f);
  sampling.xtc_probability = sometimes(0.2, 0.2f, 1.0f, 0.0f);
  sampling.dynatemp_range = sometimes(0.2, 0.0f, 1.0f, 0.0f);
  sampling.mirostat = chance(dice, 0.05) ? between(dice, 1, 2) : 0;
  sampling.adaptive_target = sometimes(0.1, 0.0f, 1.0f, -1.0f);
  sampling.min_keep = between(dice, 0, 3);
  sampling.n_probs = chance(dice, 0.3) ? between(dice, 0, 5) : -1;
  sampling.post_sampling_probs = chance(dice, 0.7);
  sampling.ignore_eos = chance(dice, 0.2);
  for (int i = between(dice, 0, 3); i > 0 && chance(dice, 0.5); --i) {
    const float bias = chance(dice, 0.5) ? -kInfinity : between(dice, -5.0f, chance(dice, 0.3) ? 5.0f : 0.0f);
    sampling.biases.push_back({between(dice, 0, 256), bias});
  }
  if (chance(dice, 0.2)) std::shuffle(sampling.samplers.begin(), sampling.samplers.end(), dice);
  const char* const grammars[] = {"root ::= [a-p]*", "root ::= [^b-z]*", "root ::= \"q\" [x-z]*", "root ::= [0-9]+"};
  if (chance(dice, 0.7)) return sampling;
  sampling.grammar = make_grammar(grammars[between(dice, 0, 3)], kVocabulary);
  if (chance(dice, 0.2)) sampling.grammar_triggers = {"a", "bc"};
  return sampling;
}

// Few different values make many equal ones, also where the picked ones end.
std::vector<float> any_logits(Dice& dice) {
  std::vector<float> logits(kSize);
  const float step = chance(dice, 0.5) ? 0.5f : 0.0f;
  for (float& logit : logits) {
    logit = std::normal_distribution<float>(0, 3)(dice);
    if (step > 0) logit = std::round(logit / step) * step;
  }
  if (chance(dice, 0.1)) std::fill(logits.begin() + between(dice, 1, 200), logits.end(), -kInfinity);
  if (chance(dice, 0.03)) logits[static_cast<size_t>(between(dice, 0, 256))] = kNan;
  if (chance(dice, 0.03)) logits[static_cast<size_t>(between(dice, 0, 256))] = kInfinity;
  return logits;
}

TEST("a draw from the largest logits is the one from all of them, with its dice and what is told of it") {
  constexpr int kSequences = 4000;
  int n_rows = 0, n_fetched = 0;
  for (int seed = 1; seed <= kSequences; ++seed) {
    Dice dice(static_cast<unsigned>(seed));
    const Sampling sampling = any_sampling(dice);
    Sampler from_all(sampling, kVocabulary, kContext), from_picked(sampling, kVocabulary, kContext);
    for (int i = 0; i < 8; ++i) {
      const Token token = between(dice, 'a', 'h');
      from_all.accept(token);
      from_picked.accept(token);
    }
    for (int i = 0; i < 4; ++i) {
      std::vector<float> logits = any_logits(dice);
      PickingBackend backend(logits, static_cast<size_t>(between(dice, 8, 96)), dice);

      const Drawn expected = draw(from_all, logits.data());
      const Drawn drawn = draw(from_picked, {backend, 0});

      REQUIRE(drawn == expected);
      ++n_rows;
      n_fetched += backend.n_fetched;
      if (drawn.token < 0) break;
    }
  }
  CHECK(n_fetched > n_rows / 10);
  CHECK(n_fetched < n_rows * 3 / 4);
}

// Logits that fall by one from token to token.
std::vector<float> falling() {
  std::vector<float> logits(kSize);
  for (size_t i = 0; i < kSize; ++i) logits[i] = -static_cast<float>(i);
  return logits;
}

// How often all logits are fetched for a draw, with so many of these picked.
int n_fetched(const Sampling& sampling, size_t n_picked, const std::vector<float>& logits = falling()) {
  Dice dice(1);
  PickingBackend backend(logits, n_picked, dice);
  Sampler sampler(sampling, kVocabulary, kContext);
  for (const Token token : {0, 1, 2}) sampler.accept(token);
  draw(sampler, {backend, 0});
  return backend.n_fetched;
}

Sampling keeping(int32_t k) {
  Sampling sampling;
  sampling.top_k = k;
  return sampling;
}

TEST("the logits that were not picked are fetched only where the cut may reach them") {
  CHECK_EQ(n_fetched(keeping(15), 16), 0);
  CHECK_EQ(n_fetched(keeping(16), 16), 1);  // another one may be as likely as the last of them
  CHECK_EQ(n_fetched(keeping(0), 16), 1);
  Sampling greedy = keeping(0);
  greedy.temperature = 0;
  CHECK_EQ(n_fetched(greedy, 16), 0);

  Sampling penalised = keeping(12);
  penalised.presence_penalty = 100;  // of three tokens
  CHECK_EQ(n_fetched(penalised, 16), 0);
  penalised.top_k = 13;
  CHECK_EQ(n_fetched(penalised, 16), 1);
}

TEST("a token that was not picked and may become likelier has its logit fetched") {
  Sampling biased = keeping(8);
  biased.biases = {{5, 3.0f}, {100, -3.0f}};
  CHECK_EQ(n_fetched(biased, 16), 0);
  biased.biases = {{100, 0.5f}};
  CHECK_EQ(n_fetched(biased, 16), 1);

  Sampling rewarded = keeping(8);
  rewarded.presence_penalty = -1;
  CHECK_EQ(n_fetched(rewarded, 16), 1);
}

TEST("likelihoods of the model's own distribution take all logits, those of what was drawn from do not") {
  Sampling told = keeping(8);
  told.n_probs = 3;
  CHECK_EQ(n_fetched(told, 16), 1);
  told.post_sampling_probs = true;
  CHECK_EQ(n_fetched(told, 16), 0);
}

TEST("where all that can be drawn were picked, none are fetched for a cut that is wider") {
  std::vector<float> logits(kSize, -kInfinity);
  std::fill_n(logits.begin(), 4, 1.0f);
  CHECK_EQ(n_fetched(keeping(10), 16, logits), 0);
}

TEST("a token that cannot begin the grammar stays banned when all logits are fetched after it") {
  std::vector<float> logits = falling();
  logits['a'] = 2;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Sampling sampling = keeping(15);
    sampling.seed = seed;
    sampling.grammar = make_grammar("root ::= \"b\"", kVocabulary);
    sampling.grammar_triggers = {"a"};
    Sampler from_all(sampling, kVocabulary, kContext), from_picked(sampling, kVocabulary, kContext);
    Dice dice(seed);
    PickingBackend backend(logits, 16, dice);
    std::vector<float> copy = logits;

    const Drawn expected = draw(from_all, copy.data());

    CHECK(draw(from_picked, {backend, 0}) == expected);
    CHECK(expected.token != 'a');
  }
}

TEST("a NaN among the picked ones has all logits fetched") {
  std::vector<float> logits = falling();
  logits[200] = kNan;
  CHECK_EQ(n_fetched(keeping(8), 16, logits), 1);
}

}  // namespace
}  // namespace corosrv
