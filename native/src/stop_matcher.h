// Stop strings: finds them across tokens, and holds back what may begin one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace corosrv {

// Works byte by byte, so that the outcome does not depend on where tokens end: the stop string that is complete first
// wins, the longest if several are complete at the same byte.
class StopMatcher {
 public:
  // Stop strings are whole UTF-8 and not empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Takes whole characters; returns the text that is certain not to belong to a stop string. After a match it returns
  // the text before the stop string and has_matched() is true; nothing may be pushed then.
  std::string push(std::string text);

  // At the end without a match: what was held back in vain.
  std::string flush();

  bool has_matched() const { return has_matched_; }

 private:
  // Knuth-Morris-Pratt: `matched` bytes of the pattern end at the last byte read.
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // [i]: the longest proper border of the first i bytes
    size_t matched = 0;

    explicit Pattern(const std::string& text);
    void read(char byte);
    bool is_complete() const { return matched == text.size(); }
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  bool has_matched_ = false;
};

}  // namespace corosrv
