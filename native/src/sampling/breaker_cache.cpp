#include "sampling/breaker_cache.h"

namespace corosrv {

namespace {

constexpr size_t kMostKept = 16;

}  // namespace

std::shared_ptr<const DryBreakers> BreakerCache::get(const std::vector<std::string>& texts,
                                                     const Vocabulary& vocabulary) {
  {
    MutexLock lock(mutex_);
    const auto found = known_.find(texts);
    if (found != known_.end()) return found->second;
  }
  // Without the lock: two that come at once make the same.
  auto made = std::make_shared<const DryBreakers>(texts, vocabulary);
  MutexLock lock(mutex_);
  if (known_.size() == kMostKept) known_.clear();
  known_.emplace(texts, made);
  return made;
}

}  // namespace corosrv
