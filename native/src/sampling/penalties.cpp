#include "sampling/penalties.h"

#include <algorithm>

namespace corosrv {

size_t window_size(int32_t wanted, int32_t context) {
  return static_cast<size_t>(wanted < 0 ? context : std::min(wanted, context));
}

Penalties::Penalties(const Sampling& sampling, int32_t context)
    : repeat_(sampling.repeat_penalty),
      presence_(sampling.presence_penalty),
      frequency_(sampling.frequency_penalty),
      size_(window_size(sampling.repeat_last_n, context)) {}

bool Penalties::is_on(const Sampling& sampling) {
  return sampling.repeat_last_n != 0 &&
         (sampling.repeat_penalty != 1.0f || sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f);
}

void Penalties::change(Logits& logits) {
  for (const auto& [token, count] : counts_) {
    float* logit = logits.find(token);
    if (logit == nullptr) continue;
    *logit = *logit <= 0 ? *logit * repeat_ : *logit / repeat_;
    *logit -= static_cast<float>(count) * frequency_ + presence_;
  }
}

void Penalties::accept(Token token) {
  ++counts_[token];
  if (window_.size() < size_) {
    window_.push_back(token);
    return;
  }
  const auto oldest = counts_.find(window_[oldest_]);
  if (--oldest->second == 0) counts_.erase(oldest);
  window_[oldest_] = token;
  oldest_ = (oldest_ + 1) % size_;
}

}  // namespace corosrv
