#include <functional>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "check.h"
#include "grammar/grammars.h"

namespace corosrv {
namespace {

// All texts of the grammar that are made of these letters, up to a length, separated by blanks.
std::string language(const std::string& grammar, size_t length, const std::string& letters = "ab") {
  Recognizer recognizer(compiled(grammar));
  std::vector<std::string> found;
  const std::function<void(const std::string&)> visit = [&](const std::string& text) {
    if (recognizer.is_complete()) found.push_back(text.empty() ? "-" : text);
    if (text.size() == length) return;
    for (const char letter : letters) {
      if (!recognizer.push(static_cast<uint8_t>(letter))) continue;
      visit(text + letter);
      recognizer.pop_to(text.size());
    }
  };
  visit("");
  std::string all;
  for (const std::string& text : found) all += (all.empty() ? "" : " ") + text;
  return all;
}

// Whether the grammar allows the text, and how far it follows it otherwise.
std::string follow(const std::string& grammar, std::string_view text) {
  Recognizer recognizer(compiled(grammar));
  size_t n_taken = 0;
  while (n_taken < text.size() && recognizer.push(static_cast<uint8_t>(text[n_taken]))) ++n_taken;
  if (n_taken < text.size()) return "refused after " + std::to_string(n_taken);
  return recognizer.is_complete() ? "complete" : "incomplete";
}

TEST("each form of the notation allows what it says and nothing else") {
  CHECK_EQ(language("root ::= \"ab\"", 4), "ab");
  CHECK_EQ(language("root ::= \"\"", 4), "-");
  CHECK_EQ(language("root ::= \"a\" | \"b\" \"a\" | \"\"", 3), "- a ba");
  CHECK_EQ(language("root ::= \"a\"*", 3), "- a aa aaa");
  CHECK_EQ(language("root ::= \"a\"+", 3), "a aa aaa");
  CHECK_EQ(language("root ::= \"a\"? \"b\"", 3), "ab b");
  CHECK_EQ(language("root ::= \"a\"{2}", 3), "aa");
  CHECK_EQ(language("root ::= \"a\"{0}", 3), "-");
  CHECK_EQ(language("root ::= \"a\"{1,}", 3), "a aa aaa");
  CHECK_EQ(language("root ::= \"a\"{ 1 , 2 }", 3), "a aa");
  CHECK_EQ(language("root ::= (\"a\" | \"b\"){0,2}", 3), "- a aa ab b ba bb");
  CHECK_EQ(language("root ::= \"ab\"{2}", 5), "abab");
  CHECK_EQ(language("root ::= \"a\"{2}{2}", 5), "aaaa");
  CHECK_EQ(language("root ::= [b]", 2), "b");
  CHECK_EQ(language("root ::= [^b]", 2), "a");
  CHECK_EQ(language("root ::= [a-b]", 2), "a b");
  CHECK_EQ(language("root ::= [\\x61]", 2), "a");
  CHECK_EQ(language("root ::= .", 1), "a b");
  CHECK_EQ(language("root ::= ( # comment | here\n \"a\"\n | \"b\" )\n\nx ::= root", 2), "a b");
  CHECK_EQ(language("root ::=\n \"a\" |\r\n \"b\"\r\nx ::= root", 2), "a b");
  CHECK_EQ(language("root ::= [a\\]-]+", 2, "a]-"), "a aa a] a- ] ]a ]] ]- - -a -] --");
}

TEST("rules call each other from the middle, from the end, and through rules that may be empty") {
  CHECK_EQ(language("root ::= x x\nx ::= \"a\" | \"b\"", 2), "aa ab ba bb");
  CHECK_EQ(language("root ::= \"a\" root \"b\" | \"\"", 6), "- aaabbb aabb ab");
  CHECK_EQ(language("root ::= \"a\" root | \"b\"", 3), "aab ab b");
  CHECK_EQ(language("root ::= x \"b\"\nx ::= \"a\" y\ny ::= x | \"\"", 4), "aaab aab ab");
  CHECK_EQ(language("root ::= x x \"b\"\nx ::= y\ny ::= \"a\" | \"\"", 4), "aab ab b");
  CHECK_EQ(language("root ::= x*\nx ::= \"a\"? \"b\"?", 2), "- a aa ab b ba bb");
  CHECK_EQ(language("root ::= \"a\" x \"b\" | \"a\" x \"a\"\nx ::= \"b\" x | \"b\"", 4), "aba abb abba abbb");
}

TEST("a rule that was called at two moments goes on from both") {
  CHECK_EQ(language("root ::= word word \"!\"\nword ::= [ab]+", 4, "a!"), "aaa! aa!");
}

TEST("characters of several bytes are matched as characters, by what their first bytes may become") {
  CHECK_EQ(follow("root ::= [\\u00e0-\\u00ef]", "\xC3\xA9"), "complete");
  CHECK_EQ(follow("root ::= [\\u00e0-\\u00ef]", "\xC3"), "incomplete");
  CHECK_EQ(follow("root ::= [\\u00e0-\\u00ef]", "\xC3\x89"), "refused after 1");
  CHECK_EQ(follow("root ::= [\\u00e0-\\u00ef]", "\xC2"), "refused after 0");
  CHECK_EQ(follow("root ::= [^\xC3\xA9]", "\xC3\xA8"), "complete");
  CHECK_EQ(follow("root ::= [^\xC3\xA9]", "\xC3\xA9"), "refused after 1");
  CHECK_EQ(follow("root ::= \"\xF0\x9F\x8C\x8A\"", "\xF0\x9F\x8C\x8A"), "complete");
  CHECK_EQ(follow("root ::= \"\xF0\x9F\x8C\x8A\"", "\xF0\x9F\x8D"), "refused after 2");
  CHECK_EQ(follow("root ::= [\\U00010000-\\U0010FFFF]", "\xEF"), "refused after 0");
  CHECK_EQ(follow("root ::= .*", "\xE2\x82"), "incomplete");
}

TEST("bytes that are no UTF-8 are refused wherever any character is allowed") {
  CHECK_EQ(follow("root ::= .*", "\x80"), "refused after 0");
  CHECK_EQ(follow("root ::= .*", "\xC0"), "refused after 0");
  CHECK_EQ(follow("root ::= .*", "\xE0\x9F"), "refused after 1");
  CHECK_EQ(follow("root ::= .*", "\xED\xA0"), "refused after 1");
  CHECK_EQ(follow("root ::= .*", "\xF4\x90"), "refused after 1");
  CHECK_EQ(follow("root ::= .*",
                  "\xC3"
                  "a"),
           "refused after 1");
}

// The character, as UTF-8.
std::string encoded(uint32_t c) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  const auto follower = [&](int shift) { return byte(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), follower(0)};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), follower(6), follower(0)};
  return {byte(0xF0 | c >> 18), follower(12), follower(6), follower(0)};
}

TEST("every character is decoded, and lies in the range that each of its beginnings promised") {
  for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x11000 ? 1 : 7) {
    if (c == 0xD800) c = 0xE000;
    Utf8Decoder decoder;
    const std::string bytes = encoded(c);
    for (size_t i = 0; i + 1 < bytes.size(); ++i) {
      REQUIRE(decoder.push(static_cast<uint8_t>(bytes[i])) == Utf8Decoder::Part::kIncomplete);
      REQUIRE(decoder.least() <= c && c <= decoder.most());
    }
    REQUIRE(decoder.push(static_cast<uint8_t>(bytes.back())) == Utf8Decoder::Part::kWhole);
    REQUIRE(decoder.code_point() == c && decoder.is_between());
  }
}

TEST("what was taken back was never there, and what was committed stays") {
  Recognizer recognizer(compiled("root ::= \"a\" (\"b\" \"c\" | \"d\") \"e\""));

  CHECK(push_all(recognizer, "abc"));
  recognizer.pop_to(1);
  CHECK(!recognizer.push('c'));
  CHECK_EQ(recognizer.depth(), 1u);
  CHECK(recognizer.push('d'));
  recognizer.commit();
  CHECK_EQ(recognizer.depth(), 0u);
  CHECK(recognizer.push('e'));
  CHECK(recognizer.is_complete());
  recognizer.pop_to(0);
  CHECK(!recognizer.is_complete());
  CHECK(!recognizer.push('b'));
}

TEST("however many ways there are to read a text, each byte costs little") {
  const std::vector<std::string> grammars = {
      "root ::= r\nr ::= \"a\" r \"x\" | \"a\" r \"y\" | \"a\"",
      "root ::= r\nr ::= \"a\" r | \"a\" r | \"a\"",
      "root ::= (\"a\" | \"a\" | [a-z])*",
      "root ::= ((\"a\"*)*)*",
      "root ::= r\nr ::= \"a\" r r | \"a\"",
      "root ::= " + repeated("\"a\"? ", 100),
  };
  for (const std::string& grammar : grammars) {
    Recognizer recognizer(compiled(grammar));
    recognizer.limit_work(2'000'000);
    const bool is_taken = push_all(recognizer, std::string(90, 'a'));
    if (!is_taken) check::fail(__FILE__, __LINE__, grammar + ": " + std::to_string(recognizer.work()));
  }
}

TEST("at the limit of work every byte is refused, until it is reset") {
  Recognizer recognizer(compiled("root ::= [a-z]*"));
  recognizer.limit_work(100);

  CHECK(!push_all(recognizer, std::string(100, 'a')));
  CHECK(recognizer.is_overworked());
  CHECK(!recognizer.push('a'));
  recognizer.commit();
  recognizer.reset_work();

  CHECK(recognizer.push('a'));
}

TEST("a long text is remembered as far as something returns into it, and no further") {
  Recognizer flat(compiled("root ::= item*\nitem ::= word \",\"\nword ::= [a-z]+"));
  Recognizer tail(compiled("root ::= list\nlist ::= \"a,\" list | \"\""));
  Recognizer deep(compiled("root ::= \"(\" root \")\" | \"\""));
  for (int i = 0; i < 20'000; ++i) {
    REQUIRE(push_all(flat, "ab,"));
    REQUIRE(push_all(tail, "a,"));
    REQUIRE(deep.push(i < 10'000 ? '(' : ')'));
    for (Recognizer* recognizer : {&flat, &tail, &deep}) {
      recognizer->commit();
      recognizer->reset_work();
    }
  }

  CHECK(flat.n_remembered() < 3000);
  CHECK(tail.n_remembered() < 3000);
  CHECK(deep.is_complete());
  CHECK(!deep.push(')'));
}

TEST("a text that would have to be remembered without end is refused") {
  Recognizer recognizer(compiled("root ::= \"(\" root \")\" | \"\""));
  size_t n_taken = 0;
  while (n_taken < 1'000'000 && recognizer.push('(')) {
    recognizer.commit();
    ++n_taken;
  }

  CHECK(n_taken > 50'000 && n_taken < 250'000);
  CHECK(recognizer.is_overworked());
}

TEST("copies go their own ways") {
  Recognizer one(compiled("root ::= \"a\" root \"b\" | \"\""));
  REQUIRE(push_all(one, "aa"));
  one.commit();
  Recognizer other = one;

  CHECK(push_all(one, "bb"));
  CHECK(push_all(other, "abb"));

  CHECK(one.is_complete());
  CHECK(!other.is_complete());
}

}  // namespace
}  // namespace corosrv
