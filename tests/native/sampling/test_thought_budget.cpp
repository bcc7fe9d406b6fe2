// How many tokens of thoughts an answer may have.
#include <string>
#include <vector>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "grammar/grammars.h"
#include "sampling/sampler.h"
#include "sampling/thought_budget.h"

namespace corosrv {
namespace {

using State = ThoughtBudget::State;

// Thoughts between <t> and </t>, ended with "</t>".
ThoughtLimit limit(int32_t max_tokens, const std::string& opening = "") {
  return {max_tokens, opening, "</t>", {'<', '/', 't', '>'}};
}

// The tokens of these texts, one after another, as long as any may come.
State state_after(ThoughtBudget& budget, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) budget.accept(text);
  return budget.state();
}

TEST("thoughts that the prompt has begun are ended after their last token") {
  ThoughtBudget budget(limit(2));

  CHECK_EQ(budget.wanted(), -1);
  CHECK(state_after(budget, {"a"}) == State::kThinking);
  CHECK(state_after(budget, {"b"}) == State::kEnding);
  for (const char letter : std::string("</t>")) {
    CHECK_EQ(budget.wanted(), letter);
    budget.accept(std::string(1, letter));
  }
  CHECK(budget.state() == State::kOver);
  CHECK_EQ(budget.wanted(), -1);
}

TEST("thoughts that are cut end at once, whatever is left of their budget") {
  ThoughtBudget budget(limit(100));
  state_after(budget, {"a", "b"});
  CHECK(budget.may_go_on());

  budget.end();

  CHECK(budget.state() == State::kEnding);
  CHECK_EQ(budget.wanted(), '<');
  CHECK(!budget.may_go_on());
}

TEST("thoughts that are cut before they begin end when they do") {
  ThoughtBudget budget(limit(100, "<t>")), text(limit(100, "<t>"));
  budget.end();
  text.end();

  CHECK(budget.state() == State::kBefore);
  CHECK(state_after(budget, {"<t>"}) == State::kEnding);
  CHECK(state_after(text, {"no"}) == State::kOver);
}

TEST("a character that has been begun is whole before thoughts that are cut end") {
  ThoughtBudget budget(limit(100));
  state_after(budget, {"a", "\xc3"});

  budget.end();

  CHECK(budget.state() == State::kThinking);
  CHECK(state_after(budget, {"\xa9"}) == State::kEnding);
}

TEST("thoughts that are over, or have no budget, cannot be cut") {
  ThoughtBudget over(limit(100)), none(ThoughtLimit{});
  state_after(over, {"</t>"});

  over.end();
  none.end();

  CHECK(over.state() == State::kOver);
  CHECK(none.state() == State::kOver);
}

TEST("a budget of nothing ends thoughts as soon as they begin") {
  ThoughtBudget begun(limit(0)), opened(limit(0, "<t>"));

  CHECK(begun.state() == State::kEnding);
  CHECK(opened.state() == State::kBefore);
  CHECK(state_after(opened, {" \n<", "t", ">"}) == State::kEnding);
}

TEST("what stands behind the opening in one token is a token of the thoughts") {
  ThoughtBudget budget(limit(1, "<t>"));

  CHECK(state_after(budget, {"<t>so"}) == State::kEnding);
}

TEST("thoughts that end by themselves are left alone, and so are later ones") {
  ThoughtBudget budget(limit(3, "<t>"));

  CHECK(state_after(budget, {"<t>", "a", "b</", "t> x"}) == State::kOver);
  CHECK(state_after(budget, {"<t>", "a", "b", "c", "d"}) == State::kOver);
}

TEST("text that does not begin with the opening has no thoughts") {
  ThoughtBudget budget(limit(1, "<t>"));

  CHECK(state_after(budget, {"a", "<t>", "b", "c"}) == State::kOver);
}

TEST("a character that was begun is finished before thoughts are ended") {
  ThoughtBudget budget(limit(1));

  CHECK(state_after(budget, {"\xE2\x82"}) == State::kThinking);
  CHECK(state_after(budget, {"\xAC"}) == State::kEnding);
}

TEST("bytes that are no character do not keep thoughts alive") {
  ThoughtBudget budget(limit(1));

  CHECK(state_after(budget, {"\xFF"}) == State::kEnding);
}

TEST("thoughts without a limit are never ended") {
  ThoughtBudget budget(ThoughtLimit{});

  CHECK(state_after(budget, {"a", "b", "c"}) == State::kOver);
}

const ByteVocabulary kVocabulary;

Sampling thinking(int32_t max_tokens, const std::string& grammar = "") {
  Sampling sampling;
  sampling.temperature = 0;
  sampling.thoughts = limit(max_tokens);
  if (!grammar.empty()) sampling.grammar = make_grammar(grammar, kVocabulary);
  return sampling;
}

// What is said of a text that the model wants to say, letter by letter.
std::string say(const Sampling& sampling, const std::string& wish, TokenList* told = nullptr) {
  Sampler sampler(sampling, kVocabulary, 100);
  std::string said;
  for (const char letter : wish) {
    std::vector<float> logits(static_cast<size_t>(kVocabulary.size()), 0.0f);
    logits[static_cast<size_t>(letter)] = 9;
    const Token drawn = sampler.draw(logits.data(), told);
    if (drawn < 0) return said + "!";
    said += kVocabulary.text(drawn);
  }
  return said;
}

TEST("the end of spent thoughts is drawn whatever the logits are, and the answer goes on") {
  CHECK_EQ(say(thinking(3), "abcdefghij"), "abc</t>hij");
}

TEST("a grammar goes on with the end of thoughts") {
  CHECK_EQ(say(thinking(2, "root ::= [a-z]* \"</t>\" [0-9]+"), "abcdef789"), "ab</t>789");
}

TEST("a grammar that does not allow the end of thoughts has its way") {
  CHECK_EQ(say(thinking(2, "root ::= [a-z]+"), "abcdef"), "abcdef");
}

TEST("the tokens that end thoughts are told of as likely as the model thinks they are") {
  Sampling sampling = thinking(0);
  sampling.n_probs = 0;
  TokenList told;

  CHECK_EQ(say(sampling, "a", &told), "<");
  REQUIRE(told.entries().size() == 1);
  CHECK(told.entries()[0].logprob < -9.0f);
  sampling.post_sampling_probs = true;
  say(sampling, "a", &told);
  CHECK_EQ(told.entries()[0].logprob, 0.0f);
}

}  // namespace
}  // namespace corosrv
