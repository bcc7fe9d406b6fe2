// A compiled grammar: plain values, made once for a request and never changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace corosrv {

// Code points, as ranges that neither touch nor overlap, in ascending order.
class CharSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // both ends belong to it

  // `ranges` in any order; `is_negated`: everything else.
  CharSet(std::vector<Range> ranges, bool is_negated);

  bool has(uint32_t code_point) const {
    if (code_point < 128) return (ascii_[code_point / 64] >> (code_point % 64) & 1) != 0;
    return has_any(code_point, code_point);
  }
  // Some code point from `least` to `most` belongs to it.
  bool has_any(uint32_t least, uint32_t most) const;

  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
  std::array<uint64_t, 2> ascii_{};  // the same for what most text is made of
};

// The right side of every rule is a piece of code, as Thompson and Pike run regular expressions: all ways through it
// are followed at once. Offsets are relative, so that a repeated piece is a copied piece.
struct Instruction {
  enum class Op : uint8_t {
    kChar,    // one character: the code point `operand`
    kSet,     // one character of sets[operand]
    kCall,    // whatever rules[operand] allows, then on
    kJump,    // go on `operand` instructions further
    kSplit,   // go on at the next instruction and `operand` instructions further
    kReturn,  // the rule ends here
  };
  Op op;
  int32_t operand = 0;

  uint32_t index() const { return static_cast<uint32_t>(operand); }
};

struct Program {
  struct Rule {
    uint32_t entry = 0;  // in code
    bool is_nullable = false;
  };
  std::vector<Instruction> code;
  std::vector<CharSet> sets;
  std::vector<Rule> rules;
  uint32_t root = 0;  // in rules

  // What it takes of memory.
  size_t bytes() const;
};

}  // namespace corosrv
