#include "gbnf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "utf8.h"

namespace corosrv {

namespace {

using Op = Instruction::Op;
using Code = std::vector<Instruction>;

constexpr std::string_view kRoot = "root";
constexpr int32_t kAnyChar = 0;  // in the sets
constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-'; }

bool is_line_end(char c) { return c == '\n' || c == '\r'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void append(Code& code, Code&& more) {
  if (code.empty()) {
    code = std::move(more);  // most groups are all there is around them: deep nesting then copies nothing
  } else {
    code.insert(code.end(), more.begin(), more.end());
  }
}

int32_t offset(size_t distance) { return static_cast<int32_t>(distance); }

// a | b | c: before each alternative but the last a split that leads to the next, after it a jump to the end.
Code join(std::vector<Code>& alternatives) {
  if (alternatives.size() == 1) return std::move(alternatives[0]);
  size_t size = 2 * (alternatives.size() - 1);
  for (const Code& alternative : alternatives) size += alternative.size();
  Code code;
  code.reserve(size);
  for (const Code& alternative : alternatives) {
    const bool is_last = &alternative == &alternatives.back();
    if (!is_last) code.push_back({Op::kSplit, offset(alternative.size() + 2)});
    code.insert(code.end(), alternative.begin(), alternative.end());
    if (!is_last) code.push_back({Op::kJump, offset(size - code.size())});
  }
  return code;
}

// item{least,most}: so many copies, then a loop, or optional copies that all lead to the end.
Code repeat(const Code& item, uint32_t least, uint32_t most) {
  Code code;
  for (uint32_t i = 0; i < least; ++i) code.insert(code.end(), item.begin(), item.end());
  if (most == kUnbounded) {
    code.push_back({Op::kSplit, offset(item.size() + 2)});
    code.insert(code.end(), item.begin(), item.end());
    code.push_back({Op::kJump, -offset(item.size() + 1)});
    return code;
  }
  for (uint32_t left = most - least; left > 0; --left) {
    code.push_back({Op::kSplit, offset(left * (item.size() + 1))});
    code.insert(code.end(), item.begin(), item.end());
  }
  return code;
}

// How many instructions repeat() makes.
uint64_t repeated_size(size_t item, uint32_t least, uint32_t most) {
  if (most == kUnbounded) return (uint64_t{least} + 1) * item + 2;
  return uint64_t{most} * item + (most - least);
}

// Recursive descent, as deep as kMaxGrammarDepth. The first refusal is kept and moves to the end of the text, so that
// every loop ends by itself; what is built after that is thrown away.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Status parse(Program& program) {
    check_text();
    skip_space(true);
    while (!is_at_end()) parse_rule();
    check_rules();
    if (refusal_.empty()) link(program);
    return refusal_.empty() ? Status::ok() : Status(COROSRV_INVALID_GRAMMAR, refusal_);
  }

 private:
  struct Rule {
    std::string name;
    size_t mentioned = 0;  // where it is first
    bool is_defined = false;
    Code code;
  };

  // The text.
  bool is_at_end() const { return position_ >= text_.size(); }
  char peek() const { return is_at_end() ? '\0' : text_[position_]; }
  bool skip(std::string_view expected) {
    if (text_.substr(std::min(position_, text_.size()), expected.size()) != expected) return false;
    position_ += expected.size();
    return true;
  }
  void skip_space(bool over_lines);

  // Refusals.
  void refuse(const std::string& what) { refuse_at(position_, what); }
  void refuse_at(size_t position, const std::string& what);
  void expect(std::string_view expected, const std::string& what) {
    if (!skip(expected)) refuse(what + ", not " + shown());
  }
  std::string shown() const;
  void check_text();
  void check_rules();

  // The notation.
  void parse_rule();
  Code parse_alternatives(int depth);
  Code parse_sequence(int depth);
  bool parse_item(Code& item, int depth);
  void parse_literal(Code& item);
  void parse_set(Code& item);
  void parse_group(Code& item, int depth);
  void parse_repetitions(Code& item, int depth);
  bool parse_bounds(uint32_t& least, uint32_t& most, int depth);
  uint32_t parse_count();
  uint32_t parse_char();
  uint32_t parse_escape();
  uint32_t parse_hex(int digits);
  std::string_view parse_name();
  uint32_t rule_named(std::string_view name, size_t position);

  bool has_room(uint64_t n_elements);
  void link(Program& program);

  const std::string_view text_;
  size_t position_ = 0;
  std::string refusal_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Rule> rules_;
  std::vector<CharSet> sets_{CharSet({}, true)};
  size_t n_elements_ = 0;  // of the rules that are complete
};

void Parser::refuse_at(size_t position, const std::string& what) {
  if (refusal_.empty()) {
    const std::string_view before = text_.substr(0, position);
    const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
    const std::string_view last = before.substr(before.find_last_of('\n') + 1);  // npos + 1 is 0
    const auto is_follower = [](char c) { return (c & 0xC0) == 0x80; };
    const size_t column = last.size() - static_cast<size_t>(std::count_if(last.begin(), last.end(), is_follower)) + 1;
    refusal_ = "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what;
  }
  position_ = text_.size();
}

// What stands here, for a sentence.
std::string Parser::shown() const {
  if (is_at_end()) return "the end of the grammar";
  if (is_line_end(peek())) return "the end of the line";
  size_t size = 1;
  while (position_ + size < text_.size() && (text_[position_ + size] & 0xC0) == 0x80) ++size;
  return "'" + std::string(text_.substr(position_, size)) + "'";
}

void Parser::check_text() {
  if (text_.size() > kMaxGrammarBytes) {
    refuse_at(0, "the grammar has " + std::to_string(text_.size()) + " bytes, and at most " +
                     std::to_string(kMaxGrammarBytes) + " are taken");
    return;
  }
  Utf8Decoder decoder;
  size_t first = 0;  // of the character
  for (size_t i = 0; i < text_.size(); ++i) {
    if (decoder.is_between()) first = i;
    if (text_[i] == '\0') return refuse_at(i, "a NUL byte; write \\x00 for the character");
    if (decoder.push(static_cast<uint8_t>(text_[i])) == Utf8Decoder::Part::kInvalid) {
      return refuse_at(first, "the text is not UTF-8");
    }
  }
  if (!decoder.is_between()) refuse_at(first, "the text is not UTF-8");
}

// Blanks and comments; `over_lines`: line ends too.
void Parser::skip_space(bool over_lines) {
  while (!is_at_end()) {
    if (peek() == '#') {
      while (!is_at_end() && !is_line_end(peek())) ++position_;
    } else if (peek() == ' ' || peek() == '\t' || (over_lines && is_line_end(peek()))) {
      ++position_;
    } else {
      return;
    }
  }
}

void Parser::parse_rule() {
  const size_t begin = position_;
  const std::string_view name = parse_name();
  if (name.empty()) return refuse("expected the name of a rule (letters, digits and '-'), not " + shown());
  skip_space(false);
  expect("::=", "expected '::=' after the name of the rule");
  skip_space(true);
  Code code = parse_alternatives(0);
  if (!is_at_end() && !is_line_end(peek())) refuse(shown() + " is not understood here");
  skip_space(true);

  const uint32_t id = rule_named(name, begin);
  if (id >= rules_.size()) return;
  Rule& rule = rules_[id];
  if (rule.is_defined) return refuse_at(begin, "the rule '" + rule.name + "' is defined twice");
  rule.is_defined = true;
  rule.mentioned = begin;
  n_elements_ += code.size() + 1;
  rule.code = std::move(code);
}

Code Parser::parse_alternatives(int depth) {
  std::vector<Code> alternatives;
  size_t n_elements = 0;
  do {
    skip_space(true);
    alternatives.push_back(parse_sequence(depth));
    n_elements += alternatives.back().size() + 2;
    if (!has_room(n_elements)) return {};
  } while (skip("|"));
  return join(alternatives);
}

Code Parser::parse_sequence(int depth) {
  Code sequence;
  Code item;
  while (parse_item(item, depth)) {
    skip_space(depth > 0);
    parse_repetitions(item, depth);
    if (!has_room(sequence.size() + item.size())) return {};
    append(sequence, std::exchange(item, {}));
  }
  return sequence;
}

// False where no item begins.
bool Parser::parse_item(Code& item, int depth) {
  const char c = peek();
  if (c == '"') {
    parse_literal(item);
  } else if (c == '[') {
    parse_set(item);
  } else if (c == '(') {
    parse_group(item, depth);
  } else if (c == '.') {
    ++position_;
    item.push_back({Op::kSet, kAnyChar});
  } else if (is_word(c)) {
    const size_t begin = position_;
    item.push_back({Op::kCall, static_cast<int32_t>(rule_named(parse_name(), begin))});
  } else if (c == '<' || c == '!') {
    refuse("references to tokens (<...>) are not supported by this server");
  } else if (c != '\0' && std::strchr("*+?{", c) != nullptr) {
    refuse("there is nothing before '" + std::string(1, c) + "' that could be repeated");
  } else {
    return false;
  }
  return true;
}

void Parser::parse_literal(Code& item) {
  const size_t begin = position_++;
  while (peek() != '"') {
    if (is_at_end()) return refuse_at(begin, "this '\"' is never closed");
    item.push_back({Op::kChar, static_cast<int32_t>(parse_char())});
  }
  ++position_;
}

void Parser::parse_set(Code& item) {
  const size_t begin = position_++;
  const bool is_negated = skip("^");
  std::vector<CharSet::Range> ranges;
  while (peek() != ']') {
    if (is_at_end()) return refuse_at(begin, "this '[' is never closed");
    const size_t range_begin = position_;
    const uint32_t first = parse_char();
    uint32_t last = first;
    if (peek() == '-' && text_.substr(position_ + 1, 1) != "]") {
      ++position_;
      if (!is_at_end()) last = parse_char();
    }
    if (last < first) return refuse_at(range_begin, "the range ends before it begins");
    ranges.emplace_back(first, last);
  }
  ++position_;
  if (ranges.empty()) return refuse_at(begin, "the set is empty");
  sets_.emplace_back(std::move(ranges), is_negated);
  item.push_back({Op::kSet, static_cast<int32_t>(sets_.size() - 1)});
}

void Parser::parse_group(Code& item, int depth) {
  const size_t begin = position_++;
  if (depth + 1 > kMaxGrammarDepth) {
    return refuse_at(begin, "brackets are nested deeper than " + std::to_string(kMaxGrammarDepth) + " levels");
  }
  item = parse_alternatives(depth + 1);
  skip_space(true);
  if (is_at_end()) return refuse_at(begin, "this '(' is never closed");
  expect(")", "expected ')'");
}

void Parser::parse_repetitions(Code& item, int depth) {
  uint32_t least = 0;
  uint32_t most = 0;
  for (size_t begin = position_; parse_bounds(least, most, depth); begin = position_) {
    if (item.empty()) return refuse_at(begin, "there is nothing before it that could be repeated");
    if (!has_room(repeated_size(item.size(), least, most))) return;
    item = repeat(item, least, most);
    skip_space(depth > 0);
  }
}

// *, +, ?, {n}, {n,} or {n,m}; false where none begins.
bool Parser::parse_bounds(uint32_t& least, uint32_t& most, int depth) {
  const size_t begin = position_;
  least = 0;
  most = kUnbounded;
  if (skip("*")) return true;
  if (skip("+")) return ++least > 0;
  if (skip("?")) return (most = 1) > 0;
  if (!skip("{")) return false;
  skip_space(depth > 0);
  least = most = parse_count();
  skip_space(depth > 0);
  if (skip(",")) {
    skip_space(depth > 0);
    most = is_digit(peek()) ? parse_count() : kUnbounded;
    skip_space(depth > 0);
  }
  expect("}", "expected '}'");
  if (least > most) refuse_at(begin, "the repetition's most is below its least");
  return refusal_.empty();
}

uint32_t Parser::parse_count() {
  const size_t begin = position_;
  uint32_t count = 0;
  for (; is_digit(peek()) && count <= kMaxGrammarRepeats; ++position_) {
    count = count * 10 + static_cast<uint32_t>(peek() - '0');
  }
  if (position_ == begin) refuse("expected a number of repetitions, not " + shown());
  if (count > kMaxGrammarRepeats) {
    refuse_at(begin, "at most " + std::to_string(kMaxGrammarRepeats) + " repetitions are taken");
  }
  return count;
}

uint32_t Parser::parse_char() {
  if (peek() == '\\') return parse_escape();
  Utf8Decoder decoder;
  while (!is_at_end()) {
    if (decoder.push(static_cast<uint8_t>(text_[position_++])) == Utf8Decoder::Part::kWhole) break;
  }
  return decoder.code_point();
}

uint32_t Parser::parse_escape() {
  const size_t begin = position_++;
  const char c = peek();
  ++position_;
  switch (c) {
    case 'x':
      return parse_hex(2);
    case 'u':
      return parse_hex(4);
    case 'U':
      return parse_hex(8);
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'n':
      return '\n';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
      return static_cast<uint32_t>(c);
    default:
      refuse_at(begin, "the escape is none of \\t \\r \\n \\\\ \\\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH");
      return 0;
  }
}

uint32_t Parser::parse_hex(int digits) {
  const size_t begin = position_ - 2;
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const int digit = hex_value(peek());
    if (digit < 0) {
      refuse_at(begin, "the escape needs " + std::to_string(digits) + " hexadecimal digits");
      return 0;
    }
    value = value << 4 | static_cast<uint32_t>(digit);
    ++position_;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) refuse_at(begin, "the escape is no character");
  return value;
}

std::string_view Parser::parse_name() {
  const size_t begin = position_;
  while (is_word(peek())) ++position_;
  return text_.substr(begin, position_ - begin);
}

uint32_t Parser::rule_named(std::string_view name, size_t position) {
  const auto [found, is_new] = ids_.try_emplace(std::string(name), static_cast<uint32_t>(rules_.size()));
  if (is_new && rules_.size() == kMaxGrammarRules) {
    refuse_at(position, "there are more than " + std::to_string(kMaxGrammarRules) + " rules");
  } else if (is_new) {
    rules_.push_back({std::string(name), position, false, {}});
  }
  return found->second;
}

bool Parser::has_room(uint64_t n_elements) {
  if (n_elements_ + n_elements <= kMaxGrammarElements) return true;
  refuse("with its repetitions written out the grammar has more than " + std::to_string(kMaxGrammarElements) +
         " elements");
  return false;
}

void Parser::check_rules() {
  if (!refusal_.empty()) return;
  const auto root = ids_.find(std::string(kRoot));
  if (root == ids_.end() || !rules_[root->second].is_defined) {
    return refuse_at(0, "there is no rule 'root', with which every answer begins");
  }
  for (const Rule& rule : rules_) {
    if (!rule.is_defined) return refuse_at(rule.mentioned, "the rule '" + rule.name + "' is not defined");
  }
}

// Which rules allow the empty text, and whether a rule can come to itself without a character in between.
class EmptinessCheck {
 public:
  explicit EmptinessCheck(Program& program) : program_(program), states_(program.rules.size(), State::kUnknown) {}

  // The first rule found that is its own beginning, or -1. Fills in is_nullable.
  int32_t find_left_recursion() {
    for (uint32_t rule = 0; rule < program_.rules.size(); ++rule) {
      if (!visit(rule)) return culprit_;
    }
    return -1;
  }

 private:
  enum class State { kUnknown, kInProgress, kKnown };

  // Follows everything that can happen before the rule's first character. As deep as there are rules; linear, because
  // each instruction of a rule is seen once.
  bool visit(uint32_t rule) {
    if (states_[rule] == State::kKnown) return true;
    if (states_[rule] == State::kInProgress) {
      culprit_ = static_cast<int32_t>(rule);
      return false;
    }
    states_[rule] = State::kInProgress;
    const uint32_t entry = program_.rules[rule].entry;
    std::vector<bool> is_seen;
    std::vector<uint32_t> todo{entry};
    while (!todo.empty()) {
      const uint32_t at = todo.back();
      todo.pop_back();
      if (is_seen.size() <= at - entry) is_seen.resize(at - entry + 1);
      if (is_seen[at - entry]) continue;
      is_seen[at - entry] = true;
      if (!follow(rule, at, todo)) return false;
    }
    states_[rule] = State::kKnown;
    return true;
  }

  bool follow(uint32_t rule, uint32_t at, std::vector<uint32_t>& todo) {
    const Instruction& instruction = program_.code[at];
    const auto target = at + instruction.index();
    switch (instruction.op) {
      case Op::kChar:
      case Op::kSet:
        return true;
      case Op::kCall:
        if (!visit(instruction.index())) return false;
        if (program_.rules[instruction.index()].is_nullable) todo.push_back(at + 1);
        return true;
      case Op::kSplit:
        todo.push_back(at + 1);
        todo.push_back(target);
        return true;
      case Op::kJump:
        todo.push_back(target);
        return true;
      case Op::kReturn:
        program_.rules[rule].is_nullable = true;
        return true;
    }
    return true;
  }

  Program& program_;
  std::vector<State> states_;
  int32_t culprit_ = -1;
};

// One rule's code after the other, each with a return.
void Parser::link(Program& program) {
  program = Program();
  for (Rule& rule : rules_) {
    program.rules.push_back({static_cast<uint32_t>(program.code.size()), false});
    append(program.code, std::move(rule.code));
    program.code.push_back({Op::kReturn});
  }
  // A jump to a return is a return, and whoever returns to it has nothing left to do: the recogniser asks for that.
  for (size_t i = program.code.size(); i-- > 0;) {
    Instruction& jump = program.code[i];
    if (jump.op == Op::kJump && program.code[i + static_cast<size_t>(jump.operand)].op == Op::kReturn) {
      jump = {Op::kReturn};
    }
  }
  program.sets = std::move(sets_);
  program.root = ids_.at(std::string(kRoot));
  const int32_t culprit = EmptinessCheck(program).find_left_recursion();
  if (culprit < 0) return;
  const Rule& rule = rules_[static_cast<size_t>(culprit)];
  refuse_at(rule.mentioned, "the rule '" + rule.name + "' can begin with itself (left recursion)");
}

}  // namespace

Status compile_gbnf(std::string_view text, Program& program) { return Parser(text).parse(program); }

}  // namespace corosrv
