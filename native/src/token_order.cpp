#include "token_order.h"

#include <algorithm>

namespace corosrv {

namespace {

uint32_t shared_bytes(std::string_view a, std::string_view b) {
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<uint32_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

}  // namespace

TokenOrder::TokenOrder(const Vocabulary& vocabulary) {
  for (Token token = 0; token < vocabulary.size(); ++token) {
    if (!vocabulary.text(token).empty() && !vocabulary.is_end_of_generation(token)) entries_.push_back({token, 0});
  }
  std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    const int order = vocabulary.text(a.token).compare(vocabulary.text(b.token));
    return order != 0 ? order < 0 : a.token < b.token;
  });
  for (size_t i = 1; i < entries_.size(); ++i) {
    entries_[i].n_shared = shared_bytes(vocabulary.text(entries_[i - 1].token), vocabulary.text(entries_[i].token));
  }
}

}  // namespace corosrv
