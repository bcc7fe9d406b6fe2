#include "grammar/grammar_code.h"

#include <utility>

namespace corosrv {

namespace {

using Op = Instruction::Op;

int32_t offset(size_t distance) { return static_cast<int32_t>(distance); }

}  // namespace

void append(Code& code, Code&& more) {
  if (code.empty()) {
    code = std::move(more);  // most groups are all there is around them: deep nesting then copies nothing
  } else {
    code.insert(code.end(), more.begin(), more.end());
  }
}

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

uint64_t repeated_size(size_t item, uint32_t least, uint32_t most) {
  if (most == kUnbounded) return (uint64_t{least} + 1) * item + 2;
  return uint64_t{most} * item + (most - least);
}

}  // namespace corosrv
