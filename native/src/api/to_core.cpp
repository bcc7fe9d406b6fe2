#include "api/to_core.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace corosrv {

namespace {

SamplerKind to_sampler(int32_t from) {
  switch (from) {
    case COROSRV_SAMPLER_PENALTIES:
      return SamplerKind::kPenalties;
    case COROSRV_SAMPLER_DRY:
      return SamplerKind::kDry;
    case COROSRV_SAMPLER_TOP_N_SIGMA:
      return SamplerKind::kTopNSigma;
    case COROSRV_SAMPLER_TOP_K:
      return SamplerKind::kTopK;
    case COROSRV_SAMPLER_TYPICAL_P:
      return SamplerKind::kTypicalP;
    case COROSRV_SAMPLER_TOP_P:
      return SamplerKind::kTopP;
    case COROSRV_SAMPLER_MIN_P:
      return SamplerKind::kMinP;
    case COROSRV_SAMPLER_XTC:
      return SamplerKind::kXtc;
    case COROSRV_SAMPLER_TEMPERATURE:
      return SamplerKind::kTemperature;
    default:
      return SamplerKind::kAdaptiveP;
  }
}

ThoughtLimit to_thought_limit(const corosrv_sampling& from) {
  if (from.n_thought_ending == 0) return {};
  return {from.thought_tokens,
          {from.thought_opening.data, from.thought_opening.size},
          {from.thought_closing.data, from.thought_closing.size},
          {from.thought_ending, from.thought_ending + from.n_thought_ending}};
}

Sampling to_sampling(const corosrv_sampling& from) {
  Sampling sampling;
  sampling.temperature = from.temperature;
  sampling.top_k = from.top_k;
  sampling.top_p = from.top_p;
  sampling.min_p = from.min_p;
  sampling.typical_p = from.typical_p;
  sampling.repeat_penalty = from.repeat_penalty;
  sampling.presence_penalty = from.presence_penalty;
  sampling.frequency_penalty = from.frequency_penalty;
  sampling.repeat_last_n = from.repeat_last_n;
  sampling.seed = from.seed;
  sampling.ignore_eos = from.ignore_eos != 0;
  for (size_t i = 0; i < from.n_biases; ++i) sampling.biases.emplace_back(from.biases[i].token, from.biases[i].bias);
  sampling.grammar_triggers = to_strings(from.grammar_triggers, from.n_grammar_triggers);
  sampling.top_n_sigma = from.top_n_sigma;
  sampling.xtc_probability = from.xtc_probability;
  sampling.xtc_threshold = from.xtc_threshold;
  sampling.dynatemp_range = from.dynatemp_range;
  sampling.dynatemp_exponent = from.dynatemp_exponent;
  sampling.dry_multiplier = from.dry_multiplier;
  sampling.dry_base = from.dry_base;
  sampling.dry_allowed_length = from.dry_allowed_length;
  sampling.dry_penalty_last_n = from.dry_penalty_last_n;
  sampling.mirostat = from.mirostat;
  sampling.mirostat_tau = from.mirostat_tau;
  sampling.mirostat_eta = from.mirostat_eta;
  sampling.adaptive_target = from.adaptive_target;
  sampling.adaptive_decay = from.adaptive_decay;
  sampling.min_keep = from.min_keep;
  sampling.samplers.clear();
  for (size_t i = 0; i < from.n_samplers; ++i) {
    sampling.samplers.push_back(to_sampler(from.samplers[i]));
  }
  sampling.n_probs = from.n_probs;
  sampling.post_sampling_probs = from.post_sampling_probs != 0;
  sampling.thoughts = to_thought_limit(from);
  return sampling;
}

std::optional<VectorWish> to_wish(const corosrv_task& from, const ModelInfo& model) {
  if (from.kind == COROSRV_RANK) return VectorWish{Pooling::kRank, 1, -1};
  if (from.kind != COROSRV_EMBED) return std::nullopt;
  return VectorWish{from.pools != 0 ? model.pooling : Pooling::kNone, model.n_vector, from.normalize};
}

// Nothing of any is one thing, however it is said.
Adapters to_adapters(const float* scales, int32_t n_adapters) {
  if (scales == nullptr) return {};
  const bool has_some = std::any_of(scales, scales + n_adapters, [](float scale) { return scale != 0; });
  return has_some ? Adapters(scales, scales + n_adapters) : Adapters();
}

ContextShift to_shift(const corosrv_task& from, const ModelInfo& model) {
  const int64_t n_keep = from.n_keep < 0 ? static_cast<int64_t>(from.n_tokens) : from.n_keep;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return {static_cast<int32_t>(std::min(n_keep + (model.add_bos ? 1 : 0), kMost)), from.n_discard};
}

Earlier to_earlier(const corosrv_task& from) {
  Earlier earlier;
  if (from.n_generated == 0) return earlier;
  earlier.tokens.assign(from.generated, from.generated + from.n_generated);
  earlier.n_sent = from.n_sent_bytes;
  if (from.n_state > 0) std::copy_n(from.state, from.n_state, earlier.state.emplace().begin());
  return earlier;
}

// Both clocks are CLOCK_MONOTONIC.
Clock::time_point to_deadline(double deadline) {
  constexpr double kNever = 1e9;  // 30 years on, and no number of nanoseconds overflows
  if (deadline == 0 || deadline > kNever) return Clock::time_point::max();
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline)));
}

GrammarLimits to_grammar_limits(const corosrv_grammar_limits& from) {
  GrammarLimits limits;
  if (from.bytes > 0) limits.bytes = static_cast<size_t>(from.bytes);
  if (from.depth > 0) limits.depth = from.depth;
  if (from.rules > 0) limits.rules = static_cast<size_t>(from.rules);
  if (from.repetitions > 0) limits.repeats = static_cast<uint32_t>(from.repetitions);
  if (from.elements > 0) limits.elements = static_cast<size_t>(from.elements);
  if (from.token_ms > 0) limits.token_ms = from.token_ms;
  return limits;
}

// As many threads draw tokens as compute the model anyway: the synthetic one needs none.
int32_t sampling_threads(const corosrv_options& options) {
  return options.synthetic == nullptr ? std::max(options.threads, 1) : 1;
}

CandidateSource to_candidates(int32_t from) {
  switch (from) {
    case COROSRV_CANDIDATES_DEVICE:
      return CandidateSource::kDevice;
    case COROSRV_CANDIDATES_PROCESSOR:
      return CandidateSource::kProcessor;
    default:
      return CandidateSource::kAuto;
  }
}

KernelSet to_kernels(int32_t from) {
  switch (from) {
    case COROSRV_KERNELS_GGML:
      return KernelSet::kGgml;
    case COROSRV_KERNELS_AVX2:
      return KernelSet::kAvx2;
    case COROSRV_KERNELS_AVX_VNNI:
      return KernelSet::kAvxVnni;
    default:
      return KernelSet::kAuto;
  }
}

std::optional<Pooling> to_pooling(int32_t from) {
  switch (from) {
    case COROSRV_POOLING_NONE:
      return Pooling::kNone;
    case COROSRV_POOLING_MEAN:
      return Pooling::kMean;
    case COROSRV_POOLING_CLS:
      return Pooling::kCls;
    case COROSRV_POOLING_LAST:
      return Pooling::kLast;
    case COROSRV_POOLING_RANK:
      return Pooling::kRank;
    default:
      return std::nullopt;
  }
}

Placement to_placement(const corosrv_placement& from) {
  Placement to;
  to.gpu_layers = from.gpu_layers;
  to.devices.assign(from.devices, from.devices + from.n_devices);
  to.split_mode = from.split_mode;
  to.main_gpu = from.main_gpu;
  to.tensor_split.assign(from.tensor_split, from.tensor_split + from.n_tensor_split);
  to.flash_attn = from.flash_attn;
  to.load_mode = from.load_mode;
  to.numa = from.numa;
  to.cache_type_k = from.cache_type_k;
  to.cache_type_v = from.cache_type_v;
  to.rope_scaling = from.rope_scaling;
  to.rope_freq_base = static_cast<float>(from.rope_freq_base);
  to.rope_freq_scale = static_cast<float>(from.rope_freq_scale);
  to.yarn_ext_factor = static_cast<float>(from.yarn_ext_factor);
  to.yarn_attn_factor = static_cast<float>(from.yarn_attn_factor);
  to.yarn_beta_fast = static_cast<float>(from.yarn_beta_fast);
  to.yarn_beta_slow = static_cast<float>(from.yarn_beta_slow);
  to.yarn_orig_ctx = from.yarn_orig_ctx;
  return to;
}

}  // namespace

Engine::Limits to_engine_limits(const corosrv_options& from) {
  Engine::Limits limits;
  limits.loop.slots = from.slots;
  limits.loop.rows = from.batch;
  limits.loop.step_ms = from.step_ms;
  limits.loop.cache_bytes = static_cast<size_t>(from.cache_bytes);
  limits.loop.threads = sampling_threads(from);
  limits.loop.queue_s = from.queue_s;
  limits.loop.stall_s = from.stall_s;
  limits.loop.idle_s = from.idle_s;
  limits.loop.drafted_rows = from.drafted_rows;
  limits.loop.draft_p_min = from.draft_p_min;
  limits.queue = static_cast<size_t>(from.queue);
  if (from.tasks_of_owner > 0) limits.tasks_of_owner = static_cast<size_t>(from.tasks_of_owner);
  limits.reader_bytes = static_cast<size_t>(from.reader_bytes);
  limits.grammars = to_grammar_limits(from.grammars);
  return limits;
}

ModelOptions to_model_options(const corosrv_options& from) {
  ModelOptions options;
  if (from.model != nullptr) options.path = from.model;
  options.adapters.assign(from.adapters, from.adapters + from.n_adapters);
  options.context = from.context;
  options.slots = from.slots;
  options.rows = from.batch;
  options.threads = from.threads;
  options.pooling = to_pooling(from.pooling);
  options.shares_context = from.kv_unified != 0;
  options.is_deterministic = from.deterministic != 0;
  options.shifts_context = from.context_shift != 0;
  options.is_safe = from.safe_load != 0;
  options.kernels = to_kernels(from.kernels);
  options.candidates = to_candidates(from.candidates);
  options.copy_bytes = from.copy_bytes;
  if (from.placement != nullptr) options.placement = to_placement(*from.placement);
  return options;
}

// Where the model is placed, with caches and positions as its file has them.
ModelOptions to_draft_options(const corosrv_options& from) {
  ModelOptions options;
  options.path = from.draft;
  options.context = from.draft_context > 0 ? from.draft_context : from.context;
  options.slots = from.slots;
  options.rows = from.batch;
  options.threads = from.threads;
  options.is_safe = from.safe_load != 0;
  options.kernels = to_kernels(from.kernels);
  options.candidates = CandidateSource::kProcessor;  // a guess is as good as all logits say
  options.copy_bytes = std::numeric_limits<int64_t>::max();
  if (from.placement == nullptr) return options;
  const Placement placed = to_placement(*from.placement);
  options.placement.gpu_layers = placed.gpu_layers;
  options.placement.devices = placed.devices;
  options.placement.split_mode = placed.split_mode;
  options.placement.main_gpu = placed.main_gpu;
  options.placement.tensor_split = placed.tensor_split;
  options.placement.flash_attn = placed.flash_attn;
  options.placement.load_mode = placed.load_mode;
  return options;
}

SyntheticOptions to_synthetic_options(const corosrv_synthetic& from) {
  SyntheticOptions options;
  options.tokens_per_s = from.tokens_per_s;
  options.prefill_tokens_per_s = from.prefill_tokens_per_s;
  options.length = from.length;
  return options;
}

std::vector<std::string> to_strings(const corosrv_text* texts, size_t n_texts) {
  std::vector<std::string> strings;
  for (size_t i = 0; i < n_texts; ++i) strings.emplace_back(texts[i].data, texts[i].size);
  return strings;
}

std::vector<RowSegment> to_segments(const corosrv_task& from) {
  std::vector<RowSegment> segments(from.n_row_segments);
  for (size_t i = 0; i < segments.size(); ++i) {
    const corosrv_row_segment& one = from.row_segments[i];
    segments[i].n_rows = one.n_rows;
    segments[i].is_non_causal = one.is_non_causal != 0;
    segments[i].n_positions = one.n_positions > 0 ? one.n_positions : one.n_rows;
    if (one.positions == nullptr) continue;
    for (const int32_t* at = one.positions; at != one.positions + 4 * static_cast<size_t>(one.n_rows); at += 4) {
      segments[i].positions.push_back({at[0], at[1], at[2], at[3]});
    }
  }
  return segments;
}

Task to_task(const corosrv_task& from, size_t index, const ModelInfo& model) {
  Task task;
  task.index = static_cast<int32_t>(index);
  task.prompt.assign(from.tokens, from.tokens + from.n_tokens);
  task.max_tokens = from.max_tokens;
  task.prediction.assign(from.prediction, from.prediction + from.n_prediction);
  task.sampling = to_sampling(from.sampling);
  task.share_prefix = from.share_prefix != 0;
  task.vectors = to_wish(from, model);
  task.stops = to_strings(from.stops, from.n_stops);
  task.max_ms = from.max_ms;
  task.scores_prompt = from.scores_prompt != 0;
  task.sharing_scope = {from.owner, to_adapters(from.adapter_scales, model.n_adapters)};
  task.tells_progress = from.tells_progress != 0;
  task.id = from.id;
  task.slot = from.slot - 1;
  if (from.priority > 0) task.priority = from.priority;
  task.tier = from.tier;
  task.weight = from.weight;
  task.deadline = to_deadline(from.deadline);
  task.earlier = to_earlier(from);
  task.tells_state = from.tells_state != 0;
  if (from.context_shift != 0) task.shift = to_shift(from, model);
  return task;
}

SlotContent to_slot_content(const corosrv_slot_content& from) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->bytes.reset(new uint8_t[from.state_size]);
  snapshot->size = from.state_size;
  std::memcpy(snapshot->bytes.get(), from.state, from.state_size);
  return {{from.tokens, from.tokens + from.n_tokens},
          {from.adapter_scales, from.adapter_scales + from.n_adapter_scales},
          std::move(snapshot)};
}

SlotRequest::Action to_action(int action) {
  switch (action) {
    case COROSRV_SLOT_SAVE:
      return SlotRequest::Action::kSave;
    case COROSRV_SLOT_RESTORE:
      return SlotRequest::Action::kRestore;
    default:
      return SlotRequest::Action::kErase;
  }
}

}  // namespace corosrv
