#include "sampling/sampling_order.h"

#include <algorithm>

#include "sampling/cutoffs.h"
#include "sampling/dry.h"
#include "sampling/penalties.h"
#include "sampling/temperature.h"
#include "sampling/xtc.h"

namespace corosrv {

namespace {

size_t min_keep(const Sampling& sampling) { return static_cast<size_t>(std::max(sampling.min_keep, 0)); }

// Null where the request does not use it.
std::unique_ptr<SparseStage> make_sparse(SamplerKind sampler, const Sampling& sampling, int32_t context) {
  if (sampler == SamplerKind::kPenalties && Penalties::is_on(sampling)) {
    return std::make_unique<Penalties>(sampling, context);
  }
  if (sampler == SamplerKind::kDry && Dry::is_on(sampling)) return std::make_unique<Dry>(sampling, context);
  return nullptr;
}

// Null where the request does not use it.
std::unique_ptr<Stage> make_stage(SamplerKind sampler, const Sampling& sampling, int32_t context) {
  switch (sampler) {
    case SamplerKind::kPenalties:
    case SamplerKind::kDry:
      return make_sparse(sampler, sampling, context);
    case SamplerKind::kTopNSigma:
      return sampling.top_n_sigma > 0 ? std::make_unique<TopNSigma>(sampling.top_n_sigma) : nullptr;
    case SamplerKind::kTopK:
      return sampling.top_k > 0 ? std::make_unique<TopK>(static_cast<size_t>(sampling.top_k)) : nullptr;
    case SamplerKind::kTypicalP:
      return sampling.typical_p < 1 ? std::make_unique<TypicalP>(sampling.typical_p, min_keep(sampling)) : nullptr;
    case SamplerKind::kTopP:
      return sampling.top_p < 1 ? std::make_unique<TopP>(sampling.top_p, min_keep(sampling)) : nullptr;
    case SamplerKind::kMinP:
      return sampling.min_p > 0 ? std::make_unique<MinP>(sampling.min_p, min_keep(sampling)) : nullptr;
    case SamplerKind::kXtc:
      if (!Xtc::is_on(sampling)) return nullptr;
      return std::make_unique<Xtc>(sampling.xtc_probability, sampling.xtc_threshold, min_keep(sampling));
    case SamplerKind::kTemperature:
      if (sampling.temperature == 1 && sampling.dynatemp_range <= 0) return nullptr;
      return std::make_unique<Temperature>(sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent);
    case SamplerKind::kAdaptiveP:
      return nullptr;  // draws, and so always comes last (chooser.h)
  }
  return nullptr;
}

// Mirostat takes the place of every cut, and reads what the penalties and the temperature leave.
bool stays_with_mirostat(SamplerKind sampler) {
  return sampler == SamplerKind::kPenalties || sampler == SamplerKind::kDry || sampler == SamplerKind::kTemperature;
}

bool may_drop_the_best(SamplerKind sampler, const Sampling& sampling) {
  return (sampler == SamplerKind::kTypicalP && sampling.typical_p < 1) ||
         (sampler == SamplerKind::kXtc && Xtc::is_on(sampling));
}

// What the order comes to: without what the request does not use, and for a greedy one no more than may change which
// token is the best.
std::vector<SamplerKind> effective(const Sampling& sampling, bool is_greedy) {
  std::vector<SamplerKind> order = sampling.samplers;
  if (sampling.mirostat != 0) {
    order.erase(std::remove_if(order.begin(), order.end(), [](auto sampler) { return !stays_with_mirostat(sampler); }),
                order.end());
  }
  if (!is_greedy) return order;
  order.erase(std::find(order.begin(), order.end(), SamplerKind::kTemperature), order.end());
  const bool is_plain =
      std::none_of(order.begin(), order.end(), [&](auto sampler) { return may_drop_the_best(sampler, sampling); });
  if (!is_plain) return order;
  const auto is_cut = [](auto sampler) { return sampler != SamplerKind::kPenalties && sampler != SamplerKind::kDry; };
  order.erase(std::remove_if(order.begin(), order.end(), is_cut), order.end());
  return order;
}

}  // namespace

SamplingOrder::SamplingOrder(const Sampling& sampling, int32_t context)
    : is_greedy(sampling.temperature <= 0 && sampling.dynatemp_range <= 0) {
  const std::vector<SamplerKind> order = effective(sampling, is_greedy);
  auto next = order.begin();
  for (; next != order.end(); ++next) {
    if (std::unique_ptr<SparseStage> stage = make_sparse(*next, sampling, context)) {
      may_raise = may_raise || stage->may_raise();
      on_row.push_back(std::move(stage));
    } else if (make_stage(*next, sampling, context)) {
      break;
    }
  }
  for (; next != order.end(); ++next) {
    if (*next == SamplerKind::kTopNSigma && n_sigma == 0 && k == 0 && on_candidates.empty()) {
      n_sigma = std::max(sampling.top_n_sigma, 0.0f);
    } else if (*next == SamplerKind::kTopK && k == 0 && on_candidates.empty()) {
      k = static_cast<size_t>(std::max(sampling.top_k, 0));
    } else if (std::unique_ptr<Stage> stage = make_stage(*next, sampling, context)) {
      on_candidates.push_back(std::move(stage));
    }
  }
  is_best_of_row = is_greedy && n_sigma == 0 && k == 0 && on_candidates.empty();
}

}  // namespace corosrv
