#include "grammar/left_recursion.h"

#include <vector>

namespace corosrv {

namespace {

using Op = Instruction::Op;

// Which rules allow the empty text, and whether a rule can come to itself without a character in between.
class EmptinessCheck {
 public:
  explicit EmptinessCheck(Program& program) : program_(program), states_(program.rules.size(), State::kUnknown) {}

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

}  // namespace

int32_t find_left_recursion(Program& program) { return EmptinessCheck(program).find_left_recursion(); }

}  // namespace corosrv
