#include <string>
#include <vector>

#include "check.h"
#include "grammar/grammars.h"
#include "sampling/sampler.h"

namespace corosrv {
namespace {

const GrammarLimits kLimits;

std::string refusal(std::string_view text) {
  Program program;
  const Status status = compile_gbnf(text, program);
  CHECK_EQ(status.code(), status.is_ok() ? StatusCode::kOk : StatusCode::kInvalidGrammar);
  return status.message();
}

struct Refused {
  std::string text;
  std::string place;
  std::string words;  // some of the message
};

void check_refused(const Refused& expected) {
  const std::string message = refusal(expected.text);
  const bool is_right =
      message.rfind(expected.place + ": ", 0) == 0 && message.find(expected.words) != std::string::npos;
  if (!is_right) check::fail(__FILE__, __LINE__, expected.text.substr(0, 80) + " gave '" + message + "'");
}

// A program that is whole: everything in it leads to somewhere.
void check_whole(const Program& program) {
  using Op = Instruction::Op;
  const auto size = static_cast<int64_t>(program.code.size());
  CHECK(program.root < program.rules.size());
  for (const Program::Rule& rule : program.rules) CHECK(rule.entry < program.code.size());
  CHECK(size > 0 && program.code.back().op == Op::kReturn);
  for (int64_t at = 0; at < size; ++at) {
    const Instruction& instruction = program.code[static_cast<size_t>(at)];
    const int64_t target = at + instruction.operand;
    if (instruction.op == Op::kSet) CHECK(instruction.index() < program.sets.size());
    if (instruction.op == Op::kCall) CHECK(instruction.index() < program.rules.size());
    if (instruction.op == Op::kJump || instruction.op == Op::kSplit) CHECK(target >= 0 && target < size);
    if (instruction.op != Op::kJump && instruction.op != Op::kReturn) CHECK(at + 1 < size);
  }
}

TEST("what is no GBNF is refused, with the place and the reason") {
  const std::vector<Refused> table = {
      {"", "line 1, column 1", "no rule 'root'"},
      {"# nothing\n", "line 1, column 1", "no rule 'root'"},
      {"start ::= \"a\"", "line 1, column 1", "no rule 'root'"},
      {"root = \"a\"", "line 1, column 6", "expected '::='"},
      {"root ::= \"a\"\n\n  = x", "line 3, column 3", "expected the name of a rule"},
      {"root ::= item\n", "line 1, column 10", "'item' is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1", "defined twice"},
      {"root ::= \"a", "line 1, column 10", "never closed"},
      {"root ::= [a-", "line 1, column 10", "never closed"},
      {"root ::= (\"a\" \"b\"", "line 1, column 10", "never closed"},
      {"root ::= (\"a\" ]", "line 1, column 15", "expected ')', not ']'"},
      {"root ::= \"a\")", "line 1, column 13", "')' is not understood"},
      {"root ::= a_b\na ::= \"x\"", "line 1, column 11", "'_' is not understood"},
      {"root ::= \"a\"\n | \"b\"", "line 2, column 2", "expected the name of a rule"},
      {"root ::= []", "line 1, column 10", "the set is empty"},
      {"root ::= [^]", "line 1, column 10", "the set is empty"},
      {"root ::= [xz-a]", "line 1, column 12", "ends before it begins"},
      {"root ::= *", "line 1, column 10", "nothing before '*'"},
      {"root ::= \"\"?", "line 1, column 12", "nothing before it"},
      {"root ::= \"a\"{}", "line 1, column 14", "expected a number"},
      {"root ::= \"a\"{,3}", "line 1, column 14", "expected a number"},
      {"root ::= \"a\"{2", "line 1, column 15", "expected '}', not the end of the grammar"},
      {"root ::= \"a\"{2;}", "line 1, column 15", "expected '}', not ';'"},
      {"root ::= \"a\"{3,1}", "line 1, column 13", "most is below its least"},
      {"root ::= \"\\q\"", "line 1, column 11", "the escape is none of"},
      {"root ::= \"\\", "line 1, column 11", "the escape is none of"},
      {"root ::= \"\\x4\"", "line 1, column 11", "needs 2 hexadecimal digits"},
      {"root ::= [\\u12G4]", "line 1, column 11", "needs 4 hexadecimal digits"},
      {"root ::= \"\\U00110000\"", "line 1, column 11", "no character"},
      {"root ::= \"\\ud800\"", "line 1, column 11", "no character"},
      {"root ::= <think>", "line 1, column 10", "references to tokens"},
      {"root ::= !<[12]>", "line 1, column 10", "references to tokens"},
      {std::string("root ::= \"\0\"", 12), "line 1, column 11", "NUL"},
      {"root ::= \"caf\xC3\xA9\" \"\xC3\"", "line 1, column 18", "not UTF-8"},
      {"root ::= \"\xED\xA0\x80\"", "line 1, column 11", "not UTF-8"},
      {"root ::= \"a\xE2\x82", "line 1, column 12", "not UTF-8"},
  };
  for (const Refused& expected : table) check_refused(expected);
}

TEST("a rule that can begin with itself is refused, however it comes to that") {
  const std::vector<Refused> table = {
      {"root ::= root \"a\" | \"b\"", "line 1, column 1", "'root' can begin with itself"},
      {"root ::= \"a\" x\nx ::= y\ny ::= x \"b\" | \"c\"", "line 2, column 1", "'x' can begin with itself"},
      {"root ::= \"a\"? root", "line 1, column 1", "left recursion"},
      {"root ::= nothing nothing root \"y\" | \"x\"\nnothing ::= none\nnone ::= \"\" | \"z\"", "line 1, column 1",
       "left recursion"},
      {"root ::= (\"a\"* (root \"b\"))?", "line 1, column 1", "left recursion"},
  };
  for (const Refused& expected : table) check_refused(expected);
  CHECK_EQ(refusal("root ::= \"a\" root | root2\nroot2 ::= \"b\""), "");
}

TEST("each limit is refused one beyond it, and taken at it") {
  const std::string rule = "root ::= ";
  const auto nested = [&](size_t depth) { return rule + repeated("(", depth) + "\"a\"" + repeated(")", depth); };
  const auto rules = [&](size_t count) {
    std::string text = rule + "\"a\"\n";
    for (size_t i = 1; i < count; ++i) text += "r" + std::to_string(i) + " ::= \"a\"\n";
    return text;
  };
  const auto commented = [&](size_t size) {
    const std::string text = rule + "\"a\" #";
    return text + std::string(size - text.size(), 'x');
  };

  CHECK_EQ(refusal(nested(kLimits.depth)), "");
  check_refused({nested(kLimits.depth + 1), "line 1, column 138", "nested deeper than 128"});
  check_refused({nested(30'000), "line 1, column 138", "nested deeper than 128"});
  CHECK_EQ(refusal(rules(kLimits.rules)), "");
  check_refused({rules(kLimits.rules + 1), "line 2001, column 1", "more than 2000 rules"});
  CHECK_EQ(refusal(commented(kLimits.bytes)), "");
  check_refused({commented(kLimits.bytes + 1), "line 1, column 1", "at most 65536 are taken"});
  CHECK_EQ(refusal(rule + "\"a\"{2000}"), "");
  check_refused({rule + "\"a\"{2001}", "line 1, column 14", "at most 2000 repetitions"});
  check_refused({rule + "\"a\"{1,99999999999999999999}", "line 1, column 16", "at most 2000 repetitions"});
  CHECK_EQ(refusal(rule + "(\"a\"{1000}){65}"), "");
  check_refused({rule + "(\"a\"{1000}){66}", "line 1, column 25", "more than 65536 elements"});
  check_refused({rule + "(((\"a\"{2000}){2000}){2000}){2000}", "line 1, column 29", "more than 65536 elements"});
  check_refused({rule + "(\"a\"?){0,2000}{0,2000}", "line 1, column 32", "more than 65536 elements"});
}

TEST("no rule is beyond a chain of as many as there may be") {
  std::string text = "root ::= r1\n";
  for (size_t i = 1; i + 1 < kLimits.rules; ++i) {
    text += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | r" + std::to_string(i + 1) + "\n";
  }
  text += "r" + std::to_string(kLimits.rules - 1) + " ::= \"a\" | \"\"";

  Recognizer recognizer(compiled(text));

  CHECK(recognizer.is_complete());
  CHECK(push_all(recognizer, "a"));
  CHECK(!recognizer.push('a'));
}

TEST("any text whatever is refused, or compiled to a program that is whole") {
  const std::vector<std::string> pieces = {
      "root", " ::= ", "\n", "\"",  "\"a\"", "[",    "]",        "[^b-d]",  "(",  ")", "|",
      "*",    "+",     "?",  "{2}", "{1,3}", "{",    "}",        ",",       " ",  "#", "\\",
      "x",    "-",     "1",  ".",   "\\x41", "\xC3", "\xC3\xA9", "r2 ::= ", "r2", "<",
  };
  Random random(7);
  int n_taken = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = round % 2 == 0 ? "root ::= " : "";
    const int length = static_cast<int>(random.next() * 12);
    for (int i = 0; i < length; ++i) {
      text += pieces[static_cast<size_t>(random.next() * static_cast<float>(pieces.size()))];
    }
    Program program;
    if (!compile_gbnf(text, program).is_ok()) continue;
    ++n_taken;
    check_whole(program);
    Recognizer recognizer(std::make_shared<const Program>(std::move(program)));
    for (int i = 0; i < 8; ++i) recognizer.push(static_cast<uint8_t>(random.next() * 256));
  }
  CHECK(n_taken > 1000);
}

TEST("limits may be others than the usual ones") {
  const auto refusal_within = [](const GrammarLimits& limits, const std::string& text) {
    Program program;
    return compile_gbnf(text, program, limits).message();
  };
  GrammarLimits bytes, depth, rules, repeats, elements;
  bytes.bytes = 11;
  depth.depth = 1;
  rules.rules = 1;
  repeats.repeats = 2;
  elements.elements = 3;

  CHECK_EQ(refusal_within(bytes, "root ::= .."), "");
  CHECK(refusal_within(bytes, "root ::= ...").find("at most 11 are taken") != std::string::npos);
  CHECK_EQ(refusal_within(depth, "root ::= (.)"), "");
  CHECK(refusal_within(depth, "root ::= ((.))").find("deeper than 1 ") != std::string::npos);
  CHECK(refusal_within(rules, "root ::= a\na ::= .").find("more than 1 rules") != std::string::npos);
  CHECK(refusal_within(repeats, "root ::= .{3}").find("at most 2 repetitions") != std::string::npos);
  CHECK(refusal_within(elements, "root ::= .{4}").find("more than 3 elements") != std::string::npos);
}

}  // namespace
}  // namespace corosrv
