// DRY's breakers in a model's tokens, kept for the next request with the same ones.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "sampling/dry.h"

namespace corosrv {

// Any thread. Most requests that use DRY name the same few texts, and finding them in a vocabulary takes milliseconds.
class BreakerCache {
 public:
  // `vocabulary` is always the same.
  std::shared_ptr<const DryBreakers> get(const std::vector<std::string>& texts, const Vocabulary& vocabulary);

 private:
  Mutex mutex_;
  std::map<std::vector<std::string>, std::shared_ptr<const DryBreakers>> known_ GUARDED_BY(mutex_);
};

}  // namespace corosrv
