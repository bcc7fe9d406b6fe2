#include <cmath>
#include <limits>
#include <set>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "fakes/tasks.h"
#include "grammar/grammars.h"
#include "sampling/sampler.h"

namespace corosrv {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int32_t kContext = 8;

const ByteVocabulary kVocabulary;

// Logits of these values for the first tokens; nothing else can be drawn.
std::vector<float> make_logits(const std::vector<float>& first) {
  std::vector<float> logits(static_cast<size_t>(kVocabulary.size()), kMinusInfinity);
  std::copy(first.begin(), first.end(), logits.begin());
  return logits;
}

std::vector<float> make_distribution(const std::vector<float>& probabilities) {
  std::vector<float> logits;
  for (const float probability : probabilities) logits.push_back(std::log(probability));
  return make_logits(logits);
}

// Every token may be drawn, by chance alone.
Sampling plain() {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.top_k = 0;
  sampling.top_p = 1;
  sampling.min_p = 0;
  sampling.seed = 11;
  return sampling;
}

Token draw_once(const Sampling& sampling, std::vector<float> logits, const std::vector<Token>& accepted = {}) {
  Sampler sampler(sampling, kVocabulary, kContext);
  for (const Token token : accepted) sampler.accept(token);
  return sampler.draw(logits.data());
}

std::vector<Token> draw_many(const Sampling& sampling, const std::vector<float>& logits, int n_draws) {
  Sampler sampler(sampling, kVocabulary, kContext);
  std::vector<Token> drawn;
  for (int i = 0; i < n_draws; ++i) {
    std::vector<float> copy = logits;
    drawn.push_back(sampler.draw(copy.data()));
  }
  return drawn;
}

// Which tokens are ever drawn.
std::vector<Token> support(const Sampling& sampling, const std::vector<float>& logits) {
  const std::vector<Token> drawn = draw_many(sampling, logits, 1000);
  const std::set<Token> different(drawn.begin(), drawn.end());
  return {different.begin(), different.end()};
}

const std::vector<float> kHalves = make_distribution({0.5f, 0.25f, 0.15f, 0.1f});
using Tokens = std::vector<Token>;

TEST("temperature 0 draws the most likely token") {
  Sampling sampling = plain();
  sampling.temperature = 0;

  CHECK_EQ(support(sampling, make_logits({1, 5, 4})), Tokens{1});
}

TEST("top_k leaves the k most likely tokens") {
  Sampling sampling = plain();
  sampling.top_k = 2;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1}));

  sampling.top_k = 100000;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1, 2, 3}));
}

TEST("top_p leaves the fewest tokens that add up to it") {
  Sampling sampling = plain();
  sampling.top_p = 0.7f;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1}));

  sampling.top_p = 0.8f;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1, 2}));

  sampling.top_p = 0;
  CHECK_EQ(support(sampling, kHalves), Tokens{0});
}

TEST("min_p leaves the tokens of at least that share of the best") {
  Sampling sampling = plain();
  sampling.min_p = 0.25f;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1, 2}));

  sampling.min_p = 0.4f;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1}));

  sampling.min_p = 1;
  CHECK_EQ(support(sampling, kHalves), Tokens{0});
}

TEST("typical_p leaves the tokens whose surprise is nearest to the expected one") {
  Sampling sampling = plain();  // the entropy is 1.21, the surprises 0.69, 1.39, 1.90, 2.30
  sampling.typical_p = 0.2f;
  CHECK_EQ(support(sampling, kHalves), Tokens{1});

  sampling.typical_p = 0.6f;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1}));

  sampling.typical_p = 0.8f;
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1, 2}));
}

TEST("cut-offs apply before the temperature flattens the distribution") {
  Sampling sampling = plain();
  sampling.temperature = 100;
  sampling.top_p = 0.7f;

  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1}));
}

// Chi square with three degrees of freedom: 21 is passed by chance once in ten thousand seeds.
void check_distribution(const Sampling& sampling, const std::vector<double>& expected) {
  constexpr int kDraws = 20000;
  std::vector<int> seen(expected.size());
  for (const Token token : draw_many(sampling, kHalves, kDraws)) ++seen.at(static_cast<size_t>(token));

  double chi_square = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    chi_square += std::pow(seen[i] - kDraws * expected[i], 2) / (kDraws * expected[i]);
  }

  CHECK(chi_square < 21);
}

TEST("tokens are drawn as often as their probability says, with and without top_k") {
  Sampling sampling = plain();
  check_distribution(sampling, {0.5, 0.25, 0.15, 0.1});

  sampling.top_k = 40;
  sampling.seed = 12;
  check_distribution(sampling, {0.5, 0.25, 0.15, 0.1});
}

TEST("temperature raises probabilities to the power of its inverse") {
  const std::vector<double> base = {0.5, 0.25, 0.15, 0.1};
  for (const float temperature : {0.5f, 2.0f}) {
    std::vector<double> expected;
    double sum = 0;
    for (const double p : base) sum += std::pow(p, 1 / temperature);
    for (const double p : base) expected.push_back(std::pow(p, 1 / temperature) / sum);
    Sampling sampling = plain();
    sampling.temperature = temperature;

    check_distribution(sampling, expected);
  }
}

TEST("the repeat penalty divides positive logits and multiplies negative ones") {
  Sampling sampling = greedy();
  sampling.repeat_penalty = 2;

  CHECK_EQ(draw_once(sampling, make_logits({4, 3}), {0}), 1);
  CHECK_EQ(draw_once(sampling, make_logits({4, 1}), {0}), 0);
  CHECK_EQ(draw_once(sampling, make_logits({-2, -3}), {0}), 1);
  CHECK_EQ(draw_once(sampling, make_logits({-2, -5}), {0}), 0);
}

TEST("the repeat penalty does not grow with the count, nor does the presence penalty") {
  Sampling repeat = greedy();
  repeat.repeat_penalty = 2;
  Sampling presence = greedy();
  presence.presence_penalty = 2;

  CHECK_EQ(draw_once(repeat, make_logits({4, 1.5f}), {0, 0, 0}), 0);
  CHECK_EQ(draw_once(presence, make_logits({4, 1.5f}), {0, 0, 0}), 0);
  CHECK_EQ(draw_once(presence, make_logits({4, 2.5f}), {0, 0, 0}), 1);
}

TEST("the frequency penalty grows with the count") {
  Sampling sampling = greedy();
  sampling.frequency_penalty = 1;

  CHECK_EQ(draw_once(sampling, make_logits({4, 2.5f}), {0}), 0);
  CHECK_EQ(draw_once(sampling, make_logits({4, 2.5f}), {0, 0}), 1);
}

TEST("penalties look back on repeat_last_n tokens") {
  const std::vector<float> logits = make_logits({4, 0, 0, 0, 0, 3});
  Sampling sampling = greedy();
  sampling.presence_penalty = 2;

  sampling.repeat_last_n = 3;
  CHECK_EQ(draw_once(sampling, logits, {0, 1, 2}), 5);
  sampling.repeat_last_n = 2;
  CHECK_EQ(draw_once(sampling, logits, {0, 1, 2}), 0);
  CHECK_EQ(draw_once(sampling, logits, {0, 1, 2, 3, 4, 0, 1}), 5);
  sampling.repeat_last_n = 0;
  CHECK_EQ(draw_once(sampling, logits, {0}), 0);
}

TEST("a token counts until its last copy has left the window") {
  Sampling sampling = greedy();
  sampling.repeat_last_n = 3;
  sampling.frequency_penalty = 1;
  const std::vector<float> logits = make_logits({4, 0, 0, 2.5f});

  CHECK_EQ(draw_once(sampling, logits, {0, 0, 1}), 3);
  CHECK_EQ(draw_once(sampling, logits, {0, 0, 1, 2}), 0);
  CHECK_EQ(draw_once(sampling, logits, {0, 0, 1, 2, 1, 0, 0}), 3);
}

TEST("repeat_last_n of -1, or beyond the context, looks back on the context") {
  const std::vector<float> logits = make_logits({4, 0, 3});
  Sampling sampling = greedy();
  sampling.presence_penalty = 2;
  Tokens whole(kContext, 1);
  whole[0] = 0;
  Tokens longer = whole;
  longer.push_back(1);

  for (const int32_t last_n : {-1, 1000}) {
    sampling.repeat_last_n = last_n;
    CHECK_EQ(draw_once(sampling, logits, whole), 2);
    CHECK_EQ(draw_once(sampling, logits, longer), 0);
  }
}

TEST("biases are added to logits, and minus infinity bans a token") {
  Sampling sampling = greedy();
  sampling.biases = {{0, -2.0f}};
  CHECK_EQ(draw_once(sampling, make_logits({4, 3})), 1);

  sampling.biases = {{0, kMinusInfinity}};
  CHECK_EQ(draw_once(sampling, make_logits({400, 3})), 1);

  Sampling random = plain();
  random.biases = {{0, kMinusInfinity}, {2, kMinusInfinity}};
  CHECK_EQ(support(random, kHalves), (Tokens{1, 3}));
}

TEST("equal seeds draw equal tokens, others do not") {
  Sampling sampling = plain();
  const Tokens first = draw_many(sampling, kHalves, 200);
  const Tokens again = draw_many(sampling, kHalves, 200);
  sampling.seed = 99;
  const Tokens other = draw_many(sampling, kHalves, 200);

  CHECK_EQ(first, again);
  CHECK(first != other);
}

TEST("with ignore_eos an end token is never drawn") {
  for (Sampling sampling : {greedy(), plain()}) {
    std::vector<float> logits = make_logits({1, 0.5f});
    logits[ByteVocabulary::kEnd] = 50;
    CHECK_EQ(draw_once(sampling, logits), ByteVocabulary::kEnd);

    sampling.ignore_eos = true;
    for (const Token token : draw_many(sampling, logits, 100)) CHECK(token == 0 || token == 1);
  }
}

TEST("nothing is drawn when all tokens are banned, however tokens are drawn") {
  Sampling random = plain();
  Sampling top_k = plain();
  top_k.top_k = 3;
  for (Sampling sampling : {greedy(), random, top_k}) {
    sampling.biases = {{0, kMinusInfinity}, {1, kMinusInfinity}};

    CHECK_EQ(draw_once(sampling, make_logits({1, 2})), -1);
  }
}

TEST("nothing is drawn from logits that are not numbers, however tokens are drawn") {
  Sampling all = plain();
  all.typical_p = all.top_p = all.min_p = 0.5f;
  Sampling top_k = plain();
  top_k.top_k = 3;
  for (const Sampling& sampling : {greedy(), plain(), all, top_k}) {
    std::vector<float> logits(static_cast<size_t>(kVocabulary.size()), kNan);

    CHECK_EQ(draw_once(sampling, logits), -1);
  }
}

TEST("all cut-offs together leave at least one token") {
  Sampling sampling = plain();
  sampling.top_k = 1;
  sampling.top_p = 0;
  sampling.typical_p = 0;
  sampling.min_p = 1;
  sampling.temperature = 1e-30f;

  CHECK_EQ(support(sampling, kHalves), Tokens{0});
}

// Grammars.

Sampling following(const std::string& grammar, Sampling sampling = plain()) {
  sampling.grammar = make_grammar(grammar, kVocabulary);
  return sampling;
}

std::vector<float> random_logits(Random& random) {
  std::vector<float> logits(static_cast<size_t>(kVocabulary.size()));
  for (float& logit : logits) logit = 10 * random.next();
  return logits;
}

TEST("greedy with a grammar is the best of all tokens that it allows") {
  Random random(3);
  for (const char* grammar : {"root ::= [a-z]", "root ::= [q]", "root ::= .", "root ::= \"\" | \"z\""}) {
    for (int round = 0; round < 50; ++round) {
      const std::vector<float> logits = random_logits(random);
      std::vector<float> filtered = logits;
      Grammar(*make_grammar(grammar, kVocabulary)).ban_refused(filtered.data());

      CHECK_EQ(draw_once(following(grammar, greedy()), logits), argmax(filtered.data(), filtered.size()));
    }
  }
}

TEST("of the k best a grammar leaves those that it allows, and no other takes the place of the rest") {
  Sampling sampling = following("root ::= [\\x01\\x03\\x04]*");
  sampling.top_k = 4;

  CHECK_EQ(support(sampling, make_logits({5, 4, 3, 4, 4})), (std::vector<Token>{1, 3, 4}));
  sampling.top_k = 3;
  CHECK_EQ(support(sampling, make_logits({5, 4, 3, 4, 4})), (std::vector<Token>{1, 3}));
}

TEST("where a grammar allows none of the k best, they are the k best of what it allows") {
  Sampling sampling = plain();
  sampling.top_k = 3;
  std::vector<float> logits(static_cast<size_t>(kVocabulary.size()), 5.0f);
  logits.back() = kMinusInfinity;  // the end token
  for (Token letter = 'a'; letter <= 'z'; ++letter)
    logits[static_cast<size_t>(letter)] = 0.1f * static_cast<float>(letter % 7);

  std::vector<float> filtered = logits;
  Grammar(*make_grammar("root ::= [a-z]", kVocabulary)).ban_refused(filtered.data());

  CHECK_EQ(draw_many(following("root ::= [a-z]*", sampling), logits, 100), draw_many(sampling, filtered, 100));
}

TEST("where a grammar allows much but none of the k best, they are found without looking at all") {
  Sampling sampling = following("root ::= [^\\x00-\\x05]*");
  sampling.top_k = 3;
  std::vector<float> logits(static_cast<size_t>(kVocabulary.size()));
  for (size_t token = 0; token < logits.size(); ++token) logits[token] = -static_cast<float>(token);

  CHECK_EQ(support(sampling, logits), (std::vector<Token>{6, 7, 8}));
}

TEST("the cut-offs look at what the grammar has left") {
  Sampling sampling = following("root ::= [\\x01\\x02]*");
  sampling.top_k = 4;
  sampling.min_p = 0.5f;

  CHECK_EQ(support(sampling, make_distribution({0.8f, 0.1f, 0.08f, 0.02f})), (std::vector<Token>{1, 2}));
}

TEST("every token that is drawn leads on in the grammar, and the same seed draws the same") {
  const Sampling sampling = following("root ::= \"a\" [x-z] \"b\" [0-9]+");
  const std::vector<float> logits(static_cast<size_t>(kVocabulary.size()), 1.0f);
  const std::vector<Token> drawn = draw_many(sampling, logits, 40);

  CHECK_EQ(drawn[0], 'a');
  CHECK(drawn[1] >= 'x' && drawn[1] <= 'z');
  CHECK_EQ(drawn[2], 'b');
  CHECK(drawn[3] >= '0' && drawn[3] <= '9');
  CHECK_EQ(draw_many(sampling, logits, 40), drawn);
}

TEST("the prompt is no part of what the grammar follows") {
  CHECK_EQ(draw_once(following("root ::= \"b\"", greedy()), make_logits(std::vector<float>(128, 1)), {'x', 'y'}), 'b');
}

TEST("a draw without a token says what is lacking") {
  using Lack = Sampler::Lack;
  const auto lack = [](const Sampling& sampling, std::vector<float> logits) {
    Sampler sampler(sampling, kVocabulary, kContext);
    CHECK_EQ(sampler.draw(logits.data()), -1);
    return sampler.lack();
  };
  const std::vector<float> letters = make_logits(std::vector<float>(128, 1));  // and no end token
  const std::string slow = "root ::= " + repeated("[^a]? ", 8000);

  CHECK_EQ(lack(plain(), make_logits({kMinusInfinity})), Lack::kChoice);
  CHECK_EQ(lack(following("root ::= \"a\""), make_logits({kNan, kNan})), Lack::kNumber);
  CHECK_EQ(lack(following("root ::= \"\""), letters), Lack::kContinuation);
  CHECK_EQ(lack(following("root ::= [\\xE9]"), letters), Lack::kAllowed);
  CHECK_EQ(lack(following(slow), letters), Lack::kTime);
}

// Likelihoods.

struct Drawn {
  Token token;
  TokenList told;
};

Drawn draw_told(const Sampling& sampling, std::vector<float> logits) {
  Sampler sampler(sampling, kVocabulary, kContext);
  Drawn drawn{-1, {}};
  drawn.token = sampler.draw(logits.data(), &drawn.told);
  return drawn;
}

TEST("what is told is the model's own distribution, whatever changes it before the draw") {
  Sampling changed = plain();
  changed.n_probs = 2;
  changed.temperature = 3;
  changed.top_k = 3;
  changed.biases = {{0, kMinusInfinity}};
  Sampling best = greedy();
  best.n_probs = 2;
  best.biases = changed.biases;
  for (const Sampling& sampling :
       {changed, best, following("root ::= [\\x01]", changed), following("root ::= [\\x01]", best)}) {
    const auto [token, told] = draw_told(sampling, kHalves);

    REQUIRE(told.entries().size() == 3);
    CHECK_EQ(told.entries()[0].token, token);
    CHECK(token != 0);
    CHECK(std::abs(told.entries()[1].logprob - std::log(0.5f)) < 1e-5f);
    CHECK(std::abs(told.entries()[2].logprob - std::log(0.25f)) < 1e-5f);
  }
}

TEST("with post_sampling_probs it is the distribution that was drawn from") {
  Sampling sampling = plain();
  sampling.n_probs = 5;
  sampling.post_sampling_probs = true;
  sampling.top_k = 2;
  const auto cut = draw_told(sampling, kHalves).told;
  REQUIRE(cut.entries().size() == 3);
  CHECK(std::abs(cut.entries()[1].logprob - std::log(2 / 3.0f)) < 1e-5f);
  CHECK(std::abs(cut.entries()[2].logprob - std::log(1 / 3.0f)) < 1e-5f);

  sampling.temperature = 0;
  const auto best = draw_told(sampling, kHalves).told;
  REQUIRE(best.entries().size() == 2);
  CHECK_EQ(best.entries()[0].logprob, 0.0f);
}

TEST("nothing is told that was not asked for") { CHECK(draw_told(plain(), kHalves).told.is_empty()); }

// Grammars that begin later.

Sampling triggered(const std::string& grammar, std::vector<std::string> triggers) {
  Sampling sampling = following(grammar, greedy());
  sampling.grammar_triggers = std::move(triggers);
  return sampling;
}

// Wants to say `wish`, token by token; says what it may.
std::string say(const Sampling& sampling, const ByteVocabulary& vocabulary, const std::vector<Token>& wish) {
  Sampler sampler(sampling, vocabulary, 100);
  std::string said;
  for (const Token token : wish) {
    std::vector<float> logits(static_cast<size_t>(vocabulary.size()), 0.0f);
    logits['z'] = 1;
    logits[static_cast<size_t>(token)] = 9;
    const Token drawn = sampler.draw(logits.data());
    if (drawn < 0) return said + "!";
    said += vocabulary.text(drawn);
  }
  return said;
}

std::vector<Token> spelled(const std::string& text) { return {text.begin(), text.end()}; }

TEST("until its trigger has come a grammar allows anything, and then what follows the trigger's beginning") {
  const Sampling sampling = triggered("root ::= \"<call>\" [0-9]+", {"<call>"});

  CHECK_EQ(say(sampling, kVocabulary, spelled("what <call> it")), "what <call>000");
  CHECK_EQ(say(sampling, kVocabulary, spelled("a<ca<call>12")), "a<ca<call>12");
}

TEST("the trigger that is complete first begins the grammar") {
  const Sampling sampling = triggered("root ::= \"b\" \"1\" | \"abc\" \"2\"", {"abc", "b"});

  CHECK_EQ(say(sampling, kVocabulary, spelled("ab1")), "ab1");
}

TEST("what a token has behind the trigger follows the grammar too, and a token that cannot is not drawn") {
  static const ByteVocabulary vocabulary({"x<call>4", "x<call>y", "<ca"});
  Sampling sampling = greedy();
  sampling.grammar = make_grammar("root ::= \"<call>\" [0-9]+", vocabulary);
  sampling.grammar_triggers = {"<call>"};
  const Token good = ByteVocabulary::kFirstWord;

  CHECK_EQ(say(sampling, vocabulary, {good, '2'}), "x<call>42");
  CHECK_EQ(say(sampling, vocabulary, {good + 1, '2'}), "z2");  // the next best instead, and the text is still free
  std::vector<Token> wish = {good + 2};
  for (const char letter : std::string("ll>7")) wish.push_back(letter);
  CHECK_EQ(say(sampling, vocabulary, wish), "<call>7");
}

Sampling thinking(std::string opening) {
  Sampling sampling = triggered("root ::= \"<call>\" [0-9]+", {"<call>"});
  sampling.thoughts = {1'000'000, std::move(opening), "</t>", {'<', '/', 't', '>'}};
  return sampling;
}

TEST("a trigger that thoughts quote begins no grammar, and the first behind them does") {
  const std::string quoted = "<t>as <call> it,\n<call> it </t>so <call>";

  CHECK_EQ(say(thinking("<t>"), kVocabulary, spelled(quoted + "12x")), quoted + "120");
  CHECK_EQ(say(thinking("<t>"), kVocabulary, spelled("no <call>x")), "no <call>0");
  CHECK_EQ(say(thinking(""), kVocabulary, spelled("as <call> it</t><call>x")), "as <call> it</t><call>0");
}

TEST("a trigger at the beginning of a line begins the grammar in thoughts that the prompt has begun") {
  CHECK_EQ(say(thinking(""), kVocabulary, spelled("hm\n<call>x")), "hm\n<call>0");
  CHECK_EQ(say(thinking(""), kVocabulary, spelled("<call>x")), "<call>0");
}

TEST("a token that ends thoughts may begin the grammar with what it has behind them") {
  static const ByteVocabulary vocabulary({"<call></t><ca", "</t><call>7"});
  Sampling sampling = thinking("");
  sampling.grammar = make_grammar("root ::= \"<call>\" [0-9]+", vocabulary);
  const Token first = ByteVocabulary::kFirstWord;

  CHECK_EQ(say(sampling, vocabulary, {'a', first, 'l', 'l', '>', 'x'}), "a<call></t><call>0");
  CHECK_EQ(say(sampling, vocabulary, {'a', first + 1, 'x'}), "a</t><call>70");
}

TEST("an answer may end before the trigger came") {
  const Sampling sampling = triggered("root ::= \"<call>\"", {"<call>"});
  Sampler sampler(sampling, kVocabulary, 100);
  std::vector<float> logits(static_cast<size_t>(kVocabulary.size()), 0.0f);
  logits[ByteVocabulary::kEnd] = 5;

  CHECK_EQ(sampler.draw(logits.data()), ByteVocabulary::kEnd);
}

// Orders.

TEST("samplers apply in the order that is asked for") {
  Sampling sampling = plain();
  sampling.temperature = 100;
  sampling.min_p = 0.4f;
  sampling.samplers = {SamplerKind::kMinP, SamplerKind::kTemperature};
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1}));

  sampling.samplers = {SamplerKind::kTemperature, SamplerKind::kMinP};
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1, 2, 3}));
}

TEST("a sampler that the order leaves out is not applied, and temperature 0 is greedy all the same") {
  Sampling sampling = plain();
  sampling.top_k = 1;
  sampling.samplers = {};
  CHECK_EQ(support(sampling, kHalves), (Tokens{0, 1, 2, 3}));

  sampling.temperature = 0;
  CHECK_EQ(support(sampling, kHalves), Tokens{0});
}

TEST("greedy with XTC draws the best that XTC leaves") {
  Sampling sampling = greedy();
  sampling.xtc_probability = 1;
  sampling.xtc_threshold = 0.09f;

  CHECK_EQ(draw_once(sampling, kHalves), 3);
}

TEST("penalties among candidates are those of the row") {
  for (const auto& order : {std::vector<SamplerKind>{SamplerKind::kPenalties, SamplerKind::kTopK},
                            std::vector<SamplerKind>{SamplerKind::kTopK, SamplerKind::kPenalties}}) {
    Sampling sampling = plain();
    sampling.top_k = 4;
    sampling.presence_penalty = 50;
    sampling.samplers = order;

    CHECK_EQ(draw_once(sampling, kHalves, {0, 1, 3}), 2);
  }
}

TEST("every other sampler draws nothing from nothing, and leaves something of something") {
  const std::vector<float> nothing(static_cast<size_t>(kVocabulary.size()), kNan);
  for (int which = 0; which < 5; ++which) {
    Sampling sampling = plain();
    if (which == 0) sampling.mirostat = 1;
    if (which == 1) sampling.mirostat = 2;
    if (which == 2) sampling.adaptive_target = 0.3f;
    if (which == 3) sampling.top_n_sigma = 0.01f;
    if (which == 4) sampling.dynatemp_range = sampling.xtc_probability = 1;
    CHECK_EQ(draw_once(sampling, nothing), -1);
    CHECK(draw_once(sampling, kHalves) >= 0);
    CHECK_EQ(draw_once(sampling, make_logits({3})), 0);
    CHECK(draw_once(sampling, make_logits(std::vector<float>(200, 1.0f))) >= 0);
  }
}

TEST("a sampler takes over all of another's state") {
  Sampling mirostat = plain(), adaptive = plain();
  mirostat.mirostat = 2;
  adaptive.adaptive_target = 0.5f;
  const SamplerState state{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  for (const auto& [sampling, n_bytes] : {std::pair{plain(), 8}, {mirostat, 12}, {adaptive, 16}}) {
    Sampler sampler(sampling, kVocabulary, kContext);

    sampler.restore(state);

    const SamplerState found = sampler.state();
    CHECK(std::equal(state.begin(), state.begin() + n_bytes, found.begin()));
  }
}

}  // namespace
}  // namespace corosrv
