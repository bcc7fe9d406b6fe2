// Texts with which a grammar begins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/pattern_matcher.h"

namespace corosrv {

// Watches a text for the first of some triggers to be complete; the longest, where several end at the same byte.
class Trigger {
 public:
  explicit Trigger(const std::vector<std::string>& texts) : matcher_(texts) {}

  bool is_set() const { return !matcher_.is_empty(); }

  // Whether `bytes`, as the next of the text, would complete a trigger. `begun`: the text from its first byte on.
  bool would_complete(std::string_view bytes, std::string& begun) const {
    PatternMatcher ahead = matcher_;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (const std::string* found = ahead.read(bytes[i])) {
        begun = *found;
        begun += bytes.substr(i + 1);
        return true;
      }
    }
    return false;
  }

  // They are the next of the text, and complete none.
  void pass(std::string_view bytes) {
    for (const char byte : bytes) matcher_.read(byte);
  }

 private:
  PatternMatcher matcher_;
};

}  // namespace corosrv
