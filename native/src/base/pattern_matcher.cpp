#include "base/pattern_matcher.h"

#include <algorithm>

namespace corosrv {

namespace {

std::vector<size_t> borders(const std::string& text) {
  std::vector<size_t> fallback(text.size() + 1, 0);
  for (size_t i = 1; i < text.size(); ++i) {
    size_t border = fallback[i];
    while (border > 0 && text[i] != text[border]) border = fallback[border];
    fallback[i + 1] = text[i] == text[border] ? border + 1 : 0;
  }
  return fallback;
}

}  // namespace

PatternMatcher::PatternMatcher(const std::vector<std::string>& patterns) : matched_(patterns.size(), 0) {
  std::vector<Pattern> made;
  made.reserve(patterns.size());
  for (const std::string& text : patterns) made.push_back({text, borders(text)});
  patterns_ = std::make_shared<const std::vector<Pattern>>(std::move(made));
}

const std::string* PatternMatcher::read(char byte) {
  const std::string* longest = nullptr;
  for (size_t i = 0; i < matched_.size(); ++i) {
    const auto& [text, fallback] = (*patterns_)[i];
    size_t& matched = matched_[i];
    if (matched == text.size()) matched = fallback[matched];
    while (matched > 0 && text[matched] != byte) matched = fallback[matched];
    if (text[matched] == byte) ++matched;
    if (matched == text.size() && (longest == nullptr || text.size() > longest->size())) longest = &text;
  }
  return longest;
}

size_t PatternMatcher::n_begun() const {
  return matched_.empty() ? 0 : *std::max_element(matched_.begin(), matched_.end());
}

}  // namespace corosrv
