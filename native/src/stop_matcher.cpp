#include "stop_matcher.h"

#include <algorithm>
#include <utility>

namespace corosrv {

StopMatcher::Pattern::Pattern(const std::string& pattern) : text(pattern), fallback(pattern.size() + 1, 0) {
  for (size_t i = 1; i < text.size(); ++i) {
    size_t border = fallback[i];
    while (border > 0 && text[i] != text[border]) border = fallback[border];
    fallback[i + 1] = text[i] == text[border] ? border + 1 : 0;
  }
}

void StopMatcher::Pattern::read(char byte) {
  while (matched > 0 && text[matched] != byte) matched = fallback[matched];
  if (text[matched] == byte) ++matched;
}

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  patterns_.reserve(stops.size());
  for (const std::string& stop : stops) patterns_.emplace_back(stop);
}

std::string StopMatcher::push(std::string text) {
  if (patterns_.empty()) return text;
  const size_t unread = held_.size();
  held_ += text;
  for (size_t i = unread; i < held_.size(); ++i) {
    size_t complete = 0;
    for (Pattern& pattern : patterns_) {
      pattern.read(held_[i]);
      if (pattern.is_complete()) complete = std::max(complete, pattern.text.size());
    }
    if (complete == 0) continue;
    has_matched_ = true;
    return std::exchange(held_, {}).substr(0, i + 1 - complete);
  }
  size_t longest = 0;
  for (const Pattern& pattern : patterns_) longest = std::max(longest, pattern.matched);
  std::string certain = held_.substr(0, held_.size() - longest);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace corosrv
