// Stop strings: finds them across tokens, and holds back what may begin one.
#pragma once

#include <string>
#include <vector>

#include "base/pattern_matcher.h"

namespace corosrv {

// Works byte by byte, so that the outcome does not depend on where tokens end: the stop string that is complete first
// wins, the longest if several are complete at the same byte.
class StopMatcher {
 public:
  // Stop strings are whole UTF-8 and not empty.
  explicit StopMatcher(const std::vector<std::string>& stops) : matcher_(stops) {}

  // Takes whole characters; returns the text that is certain not to belong to a stop string. After a match it returns
  // the text before the stop string and has_matched() is true; nothing may be pushed then.
  std::string push(std::string text);

  // At the end without a match: what was held back in vain.
  std::string flush();

  bool has_matched() const { return matched_ != nullptr; }
  // After a match: the stop string.
  const std::string& matched() const { return *matched_; }

 private:
  PatternMatcher matcher_;
  std::string held_;
  const std::string* matched_ = nullptr;
};

}  // namespace corosrv
