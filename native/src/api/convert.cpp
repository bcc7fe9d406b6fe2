#include "api/convert.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace corosrv {

namespace {

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
    sampling.samplers.push_back(static_cast<corosrv_sampler>(from.samplers[i]));
  }
  sampling.n_probs = from.n_probs;
  sampling.post_sampling_probs = from.post_sampling_probs != 0;
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

int to_finish(Finish finish) {
  switch (finish) {
    case Finish::kUnfinished:
      return COROSRV_UNFINISHED;
    case Finish::kStop:
      return COROSRV_STOP;
    case Finish::kLength:
      return COROSRV_LENGTH;
    case Finish::kCancelled:
      return COROSRV_CANCELLED;
    case Finish::kError:
      return COROSRV_ERROR;
  }
  return COROSRV_ERROR;
}

corosrv_token_list to_list(const std::unique_ptr<TokenList>& from) {
  if (!from) return {};
  return {from->entries().data(), from->entries().size(), from->pieces().data(), from->pieces().size()};
}

}  // namespace

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

std::vector<std::string> to_strings(const corosrv_text* texts, size_t n_texts) {
  std::vector<std::string> strings;
  for (size_t i = 0; i < n_texts; ++i) strings.emplace_back(texts[i].data, texts[i].size);
  return strings;
}

Task to_task(const corosrv_task& from, size_t index, const ModelInfo& model) {
  Task task;
  task.index = static_cast<int32_t>(index);
  task.prompt.assign(from.tokens, from.tokens + from.n_tokens);
  task.max_tokens = from.max_tokens;
  task.sampling = to_sampling(from.sampling);
  task.share_prefix = from.share_prefix != 0;
  task.vectors = to_wish(from, model);
  task.stops = to_strings(from.stops, from.n_stops);
  task.max_ms = from.max_ms;
  task.scores_prompt = from.scores_prompt != 0;
  task.kin = {from.owner, to_adapters(from.adapter_scales, model.n_adapters)};
  task.tells_progress = from.tells_progress != 0;
  task.id = from.id;
  task.slot = from.slot - 1;
  return task;
}

corosrv_chunk to_chunk(const Chunk& from) {
  corosrv_chunk chunk{};
  chunk.index = from.index;
  chunk.n_tokens = from.n_tokens;
  chunk.finish = to_finish(from.finish);
  chunk.prompt_tokens = from.prompt_tokens;
  chunk.cached_tokens = from.cached_tokens;
  chunk.read_tokens = from.read_tokens;
  chunk.prompt_ms = from.prompt_ms;
  chunk.decode_ms = from.decode_ms;
  chunk.text = from.text.data();
  chunk.text_size = from.text.size();
  chunk.vector = from.vector.data();
  chunk.n_vector = from.vector.size();
  chunk.stopping_word = {from.stopping_word.data(), from.stopping_word.size()};
  chunk.code = from.code;
  chunk.slot = from.slot;
  chunk.tokens = to_list(from.tokens);
  chunk.prompt_info = to_list(from.prompt_info);
  return chunk;
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

SlotErrand::Action to_action(int action) {
  switch (action) {
    case COROSRV_SLOT_SAVE:
      return SlotErrand::Action::kSave;
    case COROSRV_SLOT_RESTORE:
      return SlotErrand::Action::kRestore;
    default:
      return SlotErrand::Action::kErase;
  }
}

}  // namespace corosrv
