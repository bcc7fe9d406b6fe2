#include "api/check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "loop/owner_ledger.h"
#include "model/embedded_rows.h"
#include "recording/ring_file.h"
#include "sampling/dry.h"

namespace corosrv {

namespace {

constexpr size_t kMostDryBreakers = 64;

bool is_within(float value, float least, float most) { return value >= least && value <= most; }

bool has_text_outside(const corosrv_text* texts, size_t n_texts, size_t least, size_t most) {
  return std::any_of(texts, texts + n_texts,
                     [=](const corosrv_text& text) { return text.size < least || text.size > most; });
}

Status check_order(const int32_t* samplers, size_t n_samplers) {
  std::vector<bool> is_seen(COROSRV_SAMPLER_ADAPTIVE_P + 1);
  for (size_t i = 0; i < n_samplers; ++i) {
    const auto sampler = static_cast<size_t>(samplers[i]);  // a negative one is a large one
    if (sampler >= is_seen.size()) return invalid("samplers names an unknown one");
    if (is_seen[sampler]) return invalid("samplers names one twice");
    is_seen[sampler] = true;
  }
  return Status::ok();
}

// Those that OpenAI's API does not have.
Status check_other_samplers(const corosrv_sampling& sampling) {
  if (!std::isfinite(sampling.top_n_sigma)) return invalid("top_n_sigma must be finite");
  if (!is_within(sampling.xtc_probability, 0, 1)) return invalid("xtc_probability must be from 0 to 1");
  if (!is_within(sampling.xtc_threshold, 0, 1)) return invalid("xtc_threshold must be from 0 to 1");
  if (!is_within(sampling.dynatemp_range, 0, 1e6f)) return invalid("dynatemp_range must be 0 or more");
  if (!is_within(sampling.dynatemp_exponent, 0, 1e6f)) return invalid("dynatemp_exponent must be 0 or more");
  if (!is_within(sampling.dry_multiplier, 0, 1e6f)) return invalid("dry_multiplier must be 0 or more");
  if (!is_within(sampling.dry_base, 0, 1e6f)) return invalid("dry_base must be 0 or more");
  if (sampling.dry_allowed_length < 0) return invalid("dry_allowed_length must be 0 or more");
  if (sampling.dry_penalty_last_n < -1) return invalid("dry_penalty_last_n must be -1 or more");
  if (sampling.n_dry_breakers > kMostDryBreakers ||
      has_text_outside(sampling.dry_breakers, sampling.n_dry_breakers, 1, DryBreakers::kMostBytes)) {
    return invalid("dry_sequence_breakers must be at most " + std::to_string(kMostDryBreakers) + " texts of 1 to " +
                   std::to_string(DryBreakers::kMostBytes) + " bytes");
  }
  if (sampling.mirostat < 0 || sampling.mirostat > 2) return invalid("mirostat must be 0, 1 or 2");
  if (!is_within(sampling.mirostat_tau, 0, 1e6f)) return invalid("mirostat_tau must be 0 or more");
  if (!is_within(sampling.mirostat_eta, 0, 1e6f)) return invalid("mirostat_eta must be 0 or more");
  if (!is_within(sampling.adaptive_target, -1e6f, 1)) return invalid("adaptive_target must be at most 1");
  if (!is_within(sampling.adaptive_decay, 0, 1)) return invalid("adaptive_decay must be from 0 to 1");
  if (sampling.min_keep < 0) return invalid("min_keep must be 0 or more");
  if (sampling.n_probs < -1) return invalid("n_probs must be -1 or more");
  if (has_text_outside(sampling.grammar_triggers, sampling.n_grammar_triggers, 1, SIZE_MAX)) {
    return invalid("a grammar trigger must not be empty");
  }
  if (sampling.n_grammar_triggers > 0 && sampling.grammar.size == 0) return invalid("grammar triggers need a grammar");
  return check_order(sampling.samplers, sampling.n_samplers);
}

Status check_thoughts(const corosrv_sampling& sampling, const Vocabulary& vocabulary) {
  if (sampling.n_thought_ending == 0) return Status::ok();
  if (sampling.thought_tokens < 0) return invalid("the tokens of thoughts must be 0 or more");
  if (sampling.thought_closing.size == 0) return invalid("thoughts with a limit need a text that ends them");
  const auto is_unknown = [&vocabulary](int32_t token) { return token < 0 || token >= vocabulary.size(); };
  const int32_t* ending = sampling.thought_ending;
  if (std::any_of(ending, ending + sampling.n_thought_ending, is_unknown)) {
    return invalid("the end of thoughts has a token that is none of the model's");
  }
  return Status::ok();
}

Status check_sampling(const corosrv_sampling& sampling, const Vocabulary& vocabulary) {
  if (!is_within(sampling.temperature, 0, 1e6f)) return invalid("temperature must be 0 or more");
  if (sampling.top_k < 0) return invalid("top_k must be 0 or more");
  if (!is_within(sampling.top_p, 0, 1)) return invalid("top_p must be from 0 to 1");
  if (!is_within(sampling.min_p, 0, 1)) return invalid("min_p must be from 0 to 1");
  if (!is_within(sampling.typical_p, 0, 1)) return invalid("typical_p must be from 0 to 1");
  if (!(sampling.repeat_penalty > 0) || !std::isfinite(sampling.repeat_penalty)) {
    return invalid("repeat_penalty must be above 0");
  }
  if (!std::isfinite(sampling.presence_penalty)) return invalid("presence_penalty must be finite");
  if (!std::isfinite(sampling.frequency_penalty)) return invalid("frequency_penalty must be finite");
  if (sampling.repeat_last_n < -1) return invalid("repeat_last_n must be -1 or more");
  if (Status status = check_other_samplers(sampling); !status.is_ok()) return status;
  if (Status status = check_thoughts(sampling, vocabulary); !status.is_ok()) return status;
  for (size_t i = 0; i < sampling.n_biases; ++i) {
    const corosrv_bias& bias = sampling.biases[i];
    if (bias.token < 0 || bias.token >= vocabulary.size()) return invalid("logit_bias names an unknown token");
    if (std::isnan(bias.bias) || bias.bias == INFINITY) return invalid("logit_bias must be finite, or -infinity");
  }
  return Status::ok();
}

Status unsupported(const std::string& message) { return Status(StatusCode::kUnsupported, message); }

Status check_kind(const corosrv_task& task, const ModelInfo& model) {
  const bool ranks = model.pooling == Pooling::kRank;
  switch (task.kind) {
    case COROSRV_GENERATE:
      return model.can_generate ? Status::ok() : unsupported("this model generates no text");
    case COROSRV_EMBED:
      if (model.n_vector < 1) return unsupported("this model makes no vectors");
      if (ranks) return unsupported("this model scores texts, and makes no vectors of them");
      if (task.pools != 0 && model.pooling == Pooling::kNone) {
        return unsupported("pooling is switched off (COROSRV_POOLING=none): there is a vector for each token only");
      }
      return task.normalize < -1 ? invalid("normalize must be -1 or more") : Status::ok();
    case COROSRV_RANK:
      return ranks ? Status::ok() : unsupported("this model has no classification head to score texts with");
    default:
      return invalid("kind must be a corosrv_kind");
  }
}

// Checks that segments are of all rows, and that no token stands inside of one.
bool are_segments_of(const corosrv_task& task) {
  size_t n_segments = 0;
  int64_t n_left = 0;  // rows of the current segment
  for (size_t at = 0; at < task.n_tokens; ++at) {
    if (!is_row(task.tokens[at])) {
      if (n_left > 0) return false;
      continue;
    }
    if (n_left == 0) {
      if (n_segments == task.n_row_segments) return false;
      n_left = task.row_segments[n_segments++].n_rows;
      if (n_left < 1) return false;
    }
    --n_left;
  }
  return n_left == 0 && n_segments == task.n_row_segments;
}

// Memory is kept and cut by t: it never falls, and what comes behind the segment has a greater one.
Status check_positions(const corosrv_row_segment& segment) {
  if (segment.n_positions < 1 || segment.n_positions > segment.n_rows) {
    return invalid("the positions of a sequence move by at least 1 for embedding rows, and by one for each at most");
  }
  int32_t last = 0;
  for (int32_t row = 0; row < segment.n_rows; ++row) {
    const int32_t* const position = segment.positions + 4 * static_cast<size_t>(row);
    if (position[0] < last || position[0] >= segment.n_positions) {
      return invalid("the positions of embedding rows fall, or reach beyond those of their segment");
    }
    if (std::any_of(position + 1, position + 4, [&](int32_t own) { return own < 0 || own > segment.n_rows; })) {
      return invalid("an embedding row has a position outside of its segment");
    }
    last = position[0];
  }
  return Status::ok();
}

Status check_segments(const corosrv_task& task, const ModelInfo& model) {
  if (task.n_row_segments == 0) return Status::ok();
  if (!are_segments_of(task)) return invalid("the segments of embedding rows are not those of the prompt");
  for (size_t i = 0; i < task.n_row_segments; ++i) {
    const corosrv_row_segment& segment = task.row_segments[i];
    if (segment.positions == nullptr) {
      if (segment.n_positions == 0 || segment.n_positions == segment.n_rows) continue;
      return invalid("embedding rows without positions of their own take one each");
    }
    if (!model.is_mrope) return unsupported("this model has no M-RoPE, and sees no rows at positions of their own");
    if (const Status status = check_positions(segment); !status.is_ok()) return status;
  }
  return Status::ok();
}

// Looks at every number: one that is none would spoil what others compute.
Status check_rows(const corosrv_task& task, const ModelInfo& model) {
  const auto n_rows = static_cast<size_t>(std::count_if(task.tokens, task.tokens + task.n_tokens, is_row));
  if (n_rows > 0 && task.n_rows == 0) return invalid("the prompt has an unknown token");
  if (n_rows != task.n_rows) return invalid("the prompt does not have a negative id for each embedding row");
  if (n_rows == 0) return Status::ok();
  if (task.kind != COROSRV_GENERATE) return unsupported("a prompt of embedding rows can be generated from, no more");
  if (task.scores_prompt != 0) return unsupported("a prompt of embedding rows has no tokens to be scored");
  if (model.row_width < 1) return unsupported("this model takes no embedding rows in prompts");
  if (const Status status = check_segments(task, model); !status.is_ok()) return status;
  const size_t n_numbers = n_rows * static_cast<size_t>(model.row_width);
  const bool are_finite =
      std::all_of(task.rows, task.rows + n_numbers, [](float number) { return std::isfinite(number); });
  return are_finite ? Status::ok() : invalid("an embedding row has a number that is not finite");
}

Status check_shift(const corosrv_task& task, const ModelInfo& model) {
  if (task.n_keep < -1) return invalid("n_keep must be -1 or more");
  if (task.n_discard < 0) return invalid("n_discard must be 0 or more");
  if (task.context_shift == 0) return Status::ok();
  if (!model.can_shift) return unsupported("context_shift: this model was not opened for it");
  return task.n_rows == 0 ? Status::ok() : unsupported("context_shift: embedding rows cannot be moved");
}

bool are_known(const Token* tokens, size_t n_tokens, const Vocabulary& vocabulary) {
  return std::all_of(tokens, tokens + n_tokens, [&](Token token) { return token >= 0 && token < vocabulary.size(); });
}

// What an earlier engine did; whether its tokens can be followed is checked once there is a grammar (api/resumed.h).
Status check_earlier(const corosrv_task& task, const Vocabulary& vocabulary) {
  const bool is_resumed = task.n_generated > 0 || task.n_sent_bytes > 0 || task.n_state > 0;
  if (task.kind != COROSRV_GENERATE && (is_resumed || task.tells_state != 0)) {
    return invalid("nothing but a generation can be resumed");
  }
  if (!are_known(task.generated, task.n_generated, vocabulary)) {
    return invalid("what was generated has an unknown token");
  }
  if (std::any_of(task.generated, task.generated + task.n_generated,
                  [&](Token token) { return vocabulary.is_end_of_generation(token); })) {
    return invalid("what was generated has a token that ends an answer");
  }
  if (task.n_generated == 0 && task.n_sent_bytes > 0) return invalid("nothing was generated, and text of it was sent");
  const size_t n_state = task.n_generated > 0 ? COROSRV_STATE_BYTES : 0;
  const bool is_branch = task.n_state == 0;  // what it keeps was drawn for another task
  if (task.n_state == n_state || is_branch) return Status::ok();
  return invalid("the state of a sampler has " + std::to_string(n_state) + " bytes here, not " +
                 std::to_string(task.n_state));
}

}  // namespace

Status check_options(const corosrv_options& options) {
  if (options.slots < 1) return invalid("slots must be at least 1");
  if (options.synthetic == nullptr && options.slots > 256) {
    return invalid("slots must be at most 256: libllama keeps no more sequences in one context");
  }
  if (options.batch < 1) return invalid("batch must be at least 1");
  if (options.synthetic == nullptr && options.batch < options.slots) return invalid("batch must be at least slots");
  if (options.queue < 0) return invalid("queue must not be negative");
  if (options.tasks_of_owner < 0) return invalid("tasks_of_owner must not be negative");
  if (options.context < 0) return invalid("context must not be negative");
  if (options.synthetic != nullptr && options.context == 0) return invalid("a synthetic model needs a context");
  if (options.synthetic != nullptr && options.n_adapters > 0) return invalid("a synthetic model has no adapters");
  if (options.kv_unified != 0 && options.deterministic != 0) {
    return invalid("kv_unified and deterministic exclude each other: a sum over shared cells depends on their order");
  }
  if (!(options.step_ms > 0)) return invalid("step_ms must be above 0");
  if (options.cache_bytes < 0) return invalid("cache_bytes must not be negative");
  if (options.row_bytes < 0) return invalid("row_bytes must not be negative");
  if (options.kernels < COROSRV_KERNELS_AUTO || options.kernels > COROSRV_KERNELS_AVX_VNNI) {
    return invalid("kernels must be a corosrv_kernels");
  }
  if (options.candidates < COROSRV_CANDIDATES_AUTO || options.candidates > COROSRV_CANDIDATES_PROCESSOR) {
    return invalid("candidates must be a corosrv_candidates");
  }
  if (options.pooling < COROSRV_POOLING_MODEL || options.pooling > COROSRV_POOLING_RANK) {
    return invalid("pooling must be a corosrv_pooling");
  }
  if (options.reader_bytes < 1) return invalid("reader_bytes must be at least 1");
  if (!(options.queue_s >= 0)) return invalid("queue_s must not be negative");
  if (!(options.stall_s >= 0)) return invalid("stall_s must not be negative");
  if (!(options.idle_s >= 0 && options.idle_s <= 1e9)) return invalid("idle_s must be from 0 to 1e9");
  if (options.record_fd > 0 && options.record_bytes < static_cast<int64_t>(ring_file::kLeastSize)) {
    return invalid("record_bytes must be at least " + std::to_string(ring_file::kLeastSize));
  }
  if (options.drafted_rows < 0 || options.drafted_rows > kMostDraftedRows) {
    return invalid("drafted_rows must be from 0 to " + std::to_string(kMostDraftedRows));
  }
  if (!(options.draft_p_min >= 0 && options.draft_p_min <= 1)) return invalid("draft_p_min must be from 0 to 1");
  if (options.synthetic != nullptr && options.draft != nullptr && *options.draft != '\0') {
    return invalid("no draft model guesses for a synthetic one");
  }
  if (options.draft_context < 0) return invalid("draft_context must not be negative");
  return Status::ok();
}

Status check_grammar_limits(const corosrv_grammar_limits& limits) {
  if (limits.bytes < 0) return invalid("grammar bytes must not be negative");
  if (limits.depth < 0 || limits.depth > 1000) return invalid("grammar depth must be from 0 to 1000");
  if (limits.rules < 0) return invalid("grammar rules must not be negative");
  if (limits.repetitions < 0) return invalid("grammar repetitions must not be negative");
  if (limits.elements < 0) return invalid("grammar elements must not be negative");
  if (!(limits.token_ms >= 0) || !(limits.token_ms <= 60'000)) {
    return invalid("grammar token_ms must be from 0 to 60000");
  }
  return Status::ok();
}

Status check_task(const corosrv_task& task, const Backend& backend) {
  const Vocabulary& vocabulary = backend.vocabulary();
  if (const Status status = check_kind(task, backend.info()); !status.is_ok()) return status;
  if (task.n_tokens == 0) return invalid("the prompt has no tokens");
  if (const Status status = check_rows(task, backend.info()); !status.is_ok()) return status;
  if (!std::all_of(task.tokens, task.tokens + task.n_tokens,
                   [&](Token token) { return is_row(token) || token < vocabulary.size(); })) {
    return invalid("the prompt has an unknown token");
  }
  if (!are_known(task.prediction, task.n_prediction, vocabulary)) return invalid("the prediction has an unknown token");
  for (int32_t i = 0; task.adapter_scales != nullptr && i < backend.info().n_adapters; ++i) {
    if (!std::isfinite(task.adapter_scales[i])) return invalid("the scale of an adapter must be finite");
  }
  if (const Status status = check_shift(task, backend.info()); !status.is_ok()) return status;
  if (const Status status = check_earlier(task, vocabulary); !status.is_ok()) return status;
  if (task.max_tokens < -1) return invalid("max_tokens must be -1 or more");
  if (!(task.max_ms >= 0) || !std::isfinite(task.max_ms)) return invalid("max_ms must be 0 or more");
  if (task.priority < 0 || task.priority > 9) return invalid("priority must be from 1 to 9, or 0");
  if (task.tier < 0 || task.tier > OwnerLedger::kLastTier) return invalid("tier must be from 0 to 9");
  if (!(task.weight > 0) || !std::isfinite(task.weight)) return invalid("weight must be finite, and above 0");
  if (!(task.deadline >= 0)) return invalid("deadline must be 0 or more");
  for (size_t i = 0; i < task.n_stops; ++i) {
    if (task.stops[i].size == 0) return invalid("a stop string must not be empty");
  }
  return check_sampling(task.sampling, vocabulary);
}

Status check_content(const corosrv_slot_content& content, const Backend& backend) {
  if (content.n_tokens == 0 || content.state_size == 0) return invalid("the state is empty");
  if (!are_known(content.tokens, content.n_tokens, backend.vocabulary())) {
    return invalid("the state has an unknown token");
  }
  if (content.n_adapter_scales != 0 && content.n_adapter_scales != static_cast<size_t>(backend.info().n_adapters)) {
    return invalid("the state was computed with other adapters");
  }
  const float* scales = content.adapter_scales;
  if (!std::all_of(scales, scales + content.n_adapter_scales, [](float scale) { return std::isfinite(scale); })) {
    return invalid("the scale of an adapter must be finite");
  }
  return Status::ok();
}

}  // namespace corosrv
