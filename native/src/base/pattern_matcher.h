// Finds texts in a stream of bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace corosrv {

// Knuth-Morris-Pratt for a few patterns at once. Copies share the patterns: one may run ahead to see what would come.
class PatternMatcher {
 public:
  // None of them empty.
  explicit PatternMatcher(const std::vector<std::string>& patterns);

  bool is_empty() const { return patterns_->empty(); }

  // The longest pattern that ends with this byte, or null; it lives as long as any copy.
  const std::string* read(char byte);

  // Bytes at the end of what was read that may begin a pattern.
  size_t n_begun() const;

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // [i]: the longest proper border of the first i bytes
  };
  std::shared_ptr<const std::vector<Pattern>> patterns_;
  std::vector<size_t> matched_;  // bytes of each that end at the last byte read
};

}  // namespace corosrv
