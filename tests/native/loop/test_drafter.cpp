// What a sequence guesses, and what a row of a guess costs.
#include <string>
#include <vector>

#include "check.h"
#include "loop/drafter.h"
#include "loop/row_prices.h"

namespace corosrv {
namespace {

std::vector<Token> tokens_of(const std::string& text) { return {text.begin(), text.end()}; }

// The guesses behind this text, of which `n_prompt` tokens are the prompt.
std::string guessed(Drafter& drafter, const std::string& text, int32_t most) {
  const std::vector<Token> tokens = tokens_of(text);
  const std::vector<Token> guesses = drafter.guess(tokens, drafter.look(tokens, most).n_tokens);
  return {guesses.begin(), guesses.end()};
}

std::string guessed(const std::string& text, int32_t most) {
  Drafter drafter({}, text.size());
  return guessed(drafter, text, most);
}

TEST("a text goes on as it did when its last three tokens came before, the last time") {
  CHECK_EQ(guessed("the cat, the dog, the ", 3), "dog");
  CHECK_EQ(guessed("the cat, a dog", 5), "");
  CHECK_EQ(guessed("ab", 5), "");
  CHECK_EQ(guessed("", 5), "");
}

TEST("a text that repeats itself is guessed to do so beyond its end") { CHECK_EQ(guessed("abcabcab", 7), "cabcabc"); }

TEST("a place is kept for as long as it is right, also where a later one begins alike") {
  Drafter drafter({}, 4);
  CHECK_EQ(guessed(drafter, "xabcd1 yabc2 xabc", 2), "d1");
  CHECK_EQ(guessed(drafter, "xabcd1 yabc2 xabc2", 2), " x");
}

TEST("an answer is guessed to be what is expected of it, from its beginning on") {
  Drafter drafter(tokens_of("hello world"), 4);
  CHECK_EQ(guessed(drafter, "say:", 5), "hello");
  CHECK_EQ(guessed(drafter, "say:hel", 99), "lo world");
  CHECK_EQ(guessed(drafter, "say:hello world", 99), "");
}

TEST("an answer that leaves what is expected is found in it again by two tokens") {
  Drafter drafter(tokens_of("int size = count(a, b);"), 1);
  CHECK_EQ(guessed(drafter, ":int length", 4), "");
  CHECK_EQ(guessed(drafter, ":int length =", 6), " count");
  CHECK_EQ(guessed(drafter, ":int length = count(x", 6), "");
  CHECK_EQ(guessed(drafter, ":int length = count(x, ", 6), "b);");
}

TEST("what is expected comes before what was said, and what was said serves where nothing is expected") {
  Drafter drafter(tokens_of("abcX"), 4);
  CHECK_EQ(guessed(drafter, "abcYabc", 1), "X");
  CHECK_EQ(guessed(drafter, "abcYabcXabcYab", 1), "c");
}

TEST("every place is found in a text that outgrows the table again and again") {
  Drafter drafter({}, 0);
  std::vector<Token> tokens;
  for (Token token = 0; token < 5000; ++token) {
    tokens.push_back(token);
    drafter.look(tokens, 1);
  }
  int n_found = 0;
  for (Token first = 10; first < 4010; first += 40) {
    tokens.insert(tokens.end(), {-1 - first, first, first + 1, first + 2});
    n_found += drafter.look(tokens, 1).n_tokens > 0 && drafter.guess(tokens, 1)[0] == first + 3 ? 1 : 0;
  }
  CHECK(n_found >= 95);  // few are lost to others of the same hash
}

TEST("guesses that fail are trusted less and less, and a little more when they were not tried for long") {
  Drafter drafter({}, 0);
  const std::vector<Token> tokens = tokens_of("abcdabc");
  const double at_first = drafter.look(tokens, 9).chance;
  for (int i = 0; i < 20; ++i) drafter.learn(8, 0);
  const double after_failures = drafter.look(tokens, 9).chance;
  for (int i = 0; i < 1000; ++i) drafter.pass_over();
  const double at_last = drafter.look(tokens, 9).chance;
  for (int i = 0; i < 20; ++i) drafter.learn(8, 8);

  CHECK(after_failures < 0.2 * at_first);
  CHECK(at_last > 0.9 * at_first);
  CHECK(drafter.look(tokens, 9).chance > 0.9);
}

// Of a step: some rows' worth of time, and one for each row.
RowPrices learned(double fixed_rows, std::vector<int32_t> rows_of_steps) {
  RowPrices prices;
  for (int i = 0; i < 100; ++i) {
    const int32_t rows = rows_of_steps[static_cast<size_t>(i) % rows_of_steps.size()];
    prices.observe(rows, 0.001 * (fixed_rows + rows));
  }
  return prices;
}

bool is_near(double a, double b) { return a > 0.9 * b && a < 1.1 * b; }

TEST("the price of a step and of a row is learned from steps of different rows") {
  const RowPrices prices = learned(20, {1, 5, 17});

  CHECK(is_near(prices.row_s(), 0.001));
  CHECK(is_near(prices.step_s(1), 0.021));
  CHECK(is_near(prices.step_s(17), 0.037));
}

TEST("one that decodes alone may guess when nothing is known, and many may not") {
  CHECK(RowPrices().pays(0.5, 1, 1));
  CHECK(learned(9, {1}).pays(0.5, 1, 1));
  CHECK(!learned(9, {1}).pays(0.1, 1, 1));
  CHECK(!learned(9, {32}).pays(0.9, 32, 32));
}

TEST("a row pays where it costs little of a step, and never where it costs all of one") {
  CHECK(learned(100, {1, 9}).pays(0.05, 1, 1));
  CHECK(!learned(0, {1, 9}).pays(1, 1, 1));
}

TEST("a step that somebody else has held up hardly changes a price") {
  RowPrices prices = learned(9, {1, 9});
  prices.observe(9, 1.0);

  CHECK(prices.step_s(9) < 0.022);
}

}  // namespace
}  // namespace corosrv
