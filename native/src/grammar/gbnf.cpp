#include "grammar/gbnf.h"

#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/gbnf_text.h"
#include "grammar/grammar_code.h"
#include "grammar/left_recursion.h"

namespace corosrv {

namespace {

using Op = Instruction::Op;

constexpr std::string_view kRoot = "root";
constexpr int32_t kAnyChar = 0;  // in the sets

// Recursive descent, as deep as the limit.
class Parser {
 public:
  Parser(std::string_view text, const GrammarLimits& limits) : text_(text, limits.bytes), limits_(limits) {}

  Status parse(Program& program) {
    text_.skip_space(true);
    while (!text_.is_at_end()) parse_rule();
    check_rules();
    if (is_good()) link(program);
    return is_good() ? Status::ok() : Status(StatusCode::kInvalidGrammar, text_.refusal());
  }

 private:
  struct Rule {
    std::string name;
    size_t mentioned = 0;  // where it is first
    bool is_defined = false;
    Code code;
  };

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
  uint32_t rule_named(std::string_view name, size_t position);

  bool is_good() const { return text_.refusal().empty(); }
  bool has_room(uint64_t n_elements);
  void link(Program& program);

  GbnfText text_;
  const GrammarLimits limits_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Rule> rules_;
  std::vector<CharSet> sets_{CharSet({}, true)};
  size_t n_elements_ = 0;  // of the rules that are complete
};

void Parser::parse_rule() {
  const size_t begin = text_.position();
  const std::string_view name = text_.parse_name();
  if (name.empty()) return text_.refuse("expected the name of a rule (letters, digits and '-'), not " + text_.shown());
  text_.skip_space(false);
  text_.expect("::=", "expected '::=' after the name of the rule");
  text_.skip_space(true);
  Code code = parse_alternatives(0);
  if (!text_.is_at_end() && !is_line_end(text_.peek())) text_.refuse(text_.shown() + " is not understood here");
  text_.skip_space(true);

  const uint32_t id = rule_named(name, begin);
  if (id >= rules_.size()) return;
  Rule& rule = rules_[id];
  if (rule.is_defined) return text_.refuse_at(begin, "the rule '" + rule.name + "' is defined twice");
  rule.is_defined = true;
  rule.mentioned = begin;
  n_elements_ += code.size() + 1;
  rule.code = std::move(code);
}

Code Parser::parse_alternatives(int depth) {
  std::vector<Code> alternatives;
  size_t n_elements = 0;
  do {
    text_.skip_space(true);
    alternatives.push_back(parse_sequence(depth));
    n_elements += alternatives.back().size() + 2;
    if (!has_room(n_elements)) return {};
  } while (text_.skip("|"));
  return join(alternatives);
}

Code Parser::parse_sequence(int depth) {
  Code sequence;
  Code item;
  while (parse_item(item, depth)) {
    text_.skip_space(depth > 0);
    parse_repetitions(item, depth);
    if (!has_room(sequence.size() + item.size())) return {};
    append(sequence, std::exchange(item, {}));
  }
  return sequence;
}

// False where no item begins.
bool Parser::parse_item(Code& item, int depth) {
  const char c = text_.peek();
  if (c == '"') {
    parse_literal(item);
  } else if (c == '[') {
    parse_set(item);
  } else if (c == '(') {
    parse_group(item, depth);
  } else if (c == '.') {
    text_.advance();
    item.push_back({Op::kSet, kAnyChar});
  } else if (is_word(c)) {
    const size_t begin = text_.position();
    item.push_back({Op::kCall, static_cast<int32_t>(rule_named(text_.parse_name(), begin))});
  } else if (c == '<' || c == '!') {
    text_.refuse("references to tokens (<...>) are not supported by this server");
  } else if (c != '\0' && std::strchr("*+?{", c) != nullptr) {
    text_.refuse("there is nothing before '" + std::string(1, c) + "' that could be repeated");
  } else {
    return false;
  }
  return true;
}

void Parser::parse_literal(Code& item) {
  const size_t begin = text_.position();
  text_.advance();
  while (text_.peek() != '"') {
    if (text_.is_at_end()) return text_.refuse_at(begin, "this '\"' is never closed");
    item.push_back({Op::kChar, static_cast<int32_t>(text_.parse_char())});
  }
  text_.advance();
}

void Parser::parse_set(Code& item) {
  const size_t begin = text_.position();
  text_.advance();
  const bool is_negated = text_.skip("^");
  std::vector<CharSet::Range> ranges;
  while (text_.peek() != ']') {
    if (text_.is_at_end()) return text_.refuse_at(begin, "this '[' is never closed");
    const size_t range_begin = text_.position();
    const uint32_t first = text_.parse_char();
    uint32_t last = first;
    if (text_.peek() == '-' && text_.peek(1) != ']') {
      text_.advance();
      if (!text_.is_at_end()) last = text_.parse_char();
    }
    if (last < first) return text_.refuse_at(range_begin, "the range ends before it begins");
    ranges.emplace_back(first, last);
  }
  text_.advance();
  if (ranges.empty()) return text_.refuse_at(begin, "the set is empty");
  sets_.emplace_back(std::move(ranges), is_negated);
  item.push_back({Op::kSet, static_cast<int32_t>(sets_.size() - 1)});
}

void Parser::parse_group(Code& item, int depth) {
  const size_t begin = text_.position();
  text_.advance();
  if (depth + 1 > limits_.depth) {
    return text_.refuse_at(begin, "brackets are nested deeper than " + std::to_string(limits_.depth) + " levels");
  }
  item = parse_alternatives(depth + 1);
  text_.skip_space(true);
  if (text_.is_at_end()) return text_.refuse_at(begin, "this '(' is never closed");
  text_.expect(")", "expected ')'");
}

void Parser::parse_repetitions(Code& item, int depth) {
  uint32_t least = 0;
  uint32_t most = 0;
  for (size_t begin = text_.position(); parse_bounds(least, most, depth); begin = text_.position()) {
    if (item.empty()) return text_.refuse_at(begin, "there is nothing before it that could be repeated");
    if (!has_room(repeated_size(item.size(), least, most))) return;
    item = repeat(item, least, most);
    text_.skip_space(depth > 0);
  }
}

// *, +, ?, {n}, {n,} or {n,m}; false where none begins.
bool Parser::parse_bounds(uint32_t& least, uint32_t& most, int depth) {
  const size_t begin = text_.position();
  least = 0;
  most = kUnbounded;
  if (text_.skip("*")) return true;
  if (text_.skip("+")) return ++least > 0;
  if (text_.skip("?")) return (most = 1) > 0;
  if (!text_.skip("{")) return false;
  text_.skip_space(depth > 0);
  least = most = parse_count();
  text_.skip_space(depth > 0);
  if (text_.skip(",")) {
    text_.skip_space(depth > 0);
    most = is_digit(text_.peek()) ? parse_count() : kUnbounded;
    text_.skip_space(depth > 0);
  }
  text_.expect("}", "expected '}'");
  if (least > most) text_.refuse_at(begin, "the repetition's most is below its least");
  return is_good();
}

uint32_t Parser::parse_count() {
  const size_t begin = text_.position();
  uint32_t count = 0;
  for (; is_digit(text_.peek()) && count <= limits_.repeats; text_.advance()) {
    count = count * 10 + static_cast<uint32_t>(text_.peek() - '0');
  }
  if (text_.position() == begin) text_.refuse("expected a number of repetitions, not " + text_.shown());
  if (count > limits_.repeats) {
    text_.refuse_at(begin, "at most " + std::to_string(limits_.repeats) + " repetitions are taken");
  }
  return count;
}

uint32_t Parser::rule_named(std::string_view name, size_t position) {
  const auto [found, is_new] = ids_.try_emplace(std::string(name), static_cast<uint32_t>(rules_.size()));
  if (is_new && rules_.size() == limits_.rules) {
    text_.refuse_at(position, "there are more than " + std::to_string(limits_.rules) + " rules");
  } else if (is_new) {
    rules_.push_back({std::string(name), position, false, {}});
  }
  return found->second;
}

bool Parser::has_room(uint64_t n_elements) {
  if (n_elements_ + n_elements <= limits_.elements) return true;
  text_.refuse("with its repetitions written out the grammar has more than " + std::to_string(limits_.elements) +
               " elements");
  return false;
}

void Parser::check_rules() {
  if (!is_good()) return;
  const auto root = ids_.find(std::string(kRoot));
  if (root == ids_.end() || !rules_[root->second].is_defined) {
    return text_.refuse_at(0, "there is no rule 'root', with which every answer begins");
  }
  for (const Rule& rule : rules_) {
    if (!rule.is_defined) return text_.refuse_at(rule.mentioned, "the rule '" + rule.name + "' is not defined");
  }
}

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
  const int32_t culprit = find_left_recursion(program);
  if (culprit < 0) return;
  const Rule& rule = rules_[static_cast<size_t>(culprit)];
  text_.refuse_at(rule.mentioned, "the rule '" + rule.name + "' can begin with itself (left recursion)");
}

}  // namespace

Status compile_gbnf(std::string_view text, Program& program, const GrammarLimits& limits) {
  return Parser(text, limits).parse(program);
}

}  // namespace corosrv
