#include "grammar/token_order.h"

#include <algorithm>
#include <string_view>

namespace corosrv {

namespace {

size_t shared_bytes(std::string_view a, std::string_view b) {
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<size_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

}  // namespace

TokenOrder::TokenOrder(const Vocabulary& vocabulary) {
  for (Token token = 0; token < vocabulary.size(); ++token) {
    if (!vocabulary.text(token).empty() && !vocabulary.is_end_of_generation(token)) tokens_.push_back(token);
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](Token a, Token b) {
    const int order = vocabulary.text(a).compare(vocabulary.text(b));
    return order != 0 ? order < 0 : a < b;
  });

  std::vector<size_t> path;  // the nodes that the text before this one leads through
  std::string_view before;
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = vocabulary.text(tokens_[i]);
    leave(shared_bytes(before, text));
    for (size_t depth = path.size(); depth < text.size(); ++depth) {
      path.push_back(nodes_.size());
      nodes_.push_back({static_cast<uint32_t>(depth), 0, static_cast<uint32_t>(i), static_cast<uint8_t>(text[depth])});
    }
    before = text;
  }
  leave(0);
  nodes_.push_back({0, static_cast<uint32_t>(nodes_.size() + 1), static_cast<uint32_t>(tokens_.size()), 0});
}

}  // namespace corosrv
