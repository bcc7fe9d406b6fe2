#include "grammar/grammar_program.h"

#include <algorithm>

namespace corosrv {

namespace {

using Range = CharSet::Range;

constexpr uint32_t kMostCodePoint = 0x10FFFF;

std::vector<Range> merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> found;
  for (const Range& range : ranges) {
    if (!found.empty() && range.first <= found.back().second + 1) {
      found.back().second = std::max(found.back().second, range.second);
    } else {
      found.push_back(range);
    }
  }
  return found;
}

std::vector<Range> complement(const std::vector<Range>& ranges) {
  std::vector<Range> found;
  uint32_t next = 0;
  for (const Range& range : ranges) {
    if (next < range.first) found.emplace_back(next, range.first - 1);
    next = range.second + 1;
  }
  if (next <= kMostCodePoint) found.emplace_back(next, kMostCodePoint);
  return found;
}

}  // namespace

CharSet::CharSet(std::vector<Range> ranges, bool is_negated) : ranges_(merged(std::move(ranges))) {
  if (is_negated) ranges_ = complement(ranges_);
  for (uint32_t code_point = 0; code_point < 128; ++code_point) {
    if (has_any(code_point, code_point)) ascii_[code_point / 64] |= uint64_t{1} << (code_point % 64);
  }
}

bool CharSet::has_any(uint32_t least, uint32_t most) const {
  const auto range = std::lower_bound(ranges_.begin(), ranges_.end(), least,
                                      [](const Range& a, uint32_t code_point) { return a.second < code_point; });
  return range != ranges_.end() && range->first <= most;
}

size_t Program::bytes() const {
  size_t bytes = sizeof *this + code.size() * sizeof code[0] + rules.size() * sizeof rules[0];
  for (const CharSet& set : sets) bytes += sizeof set + set.ranges().size() * sizeof set.ranges()[0];
  return bytes;
}

}  // namespace corosrv
