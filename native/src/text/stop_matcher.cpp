#include "text/stop_matcher.h"

#include <utility>

namespace corosrv {

std::string StopMatcher::push(std::string text) {
  if (matcher_.is_empty()) return text;
  const size_t unread = held_.size();
  held_ += text;
  for (size_t i = unread; i < held_.size(); ++i) {
    matched_ = matcher_.read(held_[i]);
    if (matched_ != nullptr) return std::exchange(held_, {}).substr(0, i + 1 - matched_->size());
  }
  std::string certain = held_.substr(0, held_.size() - matcher_.n_begun());
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace corosrv
