// The C API: check, convert, catch; no logic.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "corosrv.h"
#include "dry.h"
#include "engine.h"
#include "fork_guard.h"
#include "json_limits.h"
#ifndef COROSRV_WITHOUT_LLAMA
#include "llama_backend.h"
#endif
#include "synthetic_backend.h"

#ifndef COROSRV_LLAMA_FINGERPRINT
#define COROSRV_LLAMA_FINGERPRINT ""
#endif

using namespace corosrv;

struct corosrv_engine {
  ForkGuard fork_guard;
  std::unique_ptr<Engine> engine;
};

struct corosrv_reader {
  ForkGuard fork_guard;
  std::shared_ptr<Reader> reader;
  std::vector<Chunk> taken;
  std::vector<corosrv_chunk> chunks;  // what `taken` looks like from C
};

struct corosrv_errand {
  ForkGuard fork_guard;
  std::shared_ptr<SlotErrand> errand;
};

namespace {

Status forked() {
  return Status(COROSRV_FORKED,
                "this engine was opened before a fork() and serves the parent process only; open one in each process "
                "after forking (gunicorn: do not use --preload)");
}

int report(const Status& status, char* message, size_t message_size) {
  if (!status.is_ok() && message != nullptr && message_size > 0) {
    const size_t size = std::min(status.message().size(), message_size - 1);
    std::memcpy(message, status.message().data(), size);
    message[size] = '\0';
  }
  return status.code();
}

// Nothing throws past the C API.
template <typename Call>
int guarded(char* message, size_t message_size, Call call) {
  try {
    return report(call(), message, message_size);
  } catch (const std::exception& error) {
    return report(Status(COROSRV_INTERNAL, error.what()), message, message_size);
  }
}

constexpr size_t kMostDryBreakers = 64;

Status invalid(const std::string& message) { return Status(COROSRV_INVALID, message); }

Status check_options(const corosrv_options& options) {
  if (options.slots < 1) return invalid("slots must be at least 1");
  if (options.synthetic == nullptr && options.slots > 256) {
    return invalid("slots must be at most 256: libllama keeps no more sequences in one context");
  }
  if (options.batch < 1) return invalid("batch must be at least 1");
  if (options.synthetic == nullptr && options.batch < options.slots) return invalid("batch must be at least slots");
  if (options.queue < 0) return invalid("queue must not be negative");
  if (options.context < 0) return invalid("context must not be negative");
  if (options.synthetic != nullptr && options.context == 0) return invalid("a synthetic model needs a context");
  if (options.synthetic != nullptr && options.n_adapters > 0) return invalid("a synthetic model has no adapters");
  if (!(options.step_ms > 0)) return invalid("step_ms must be above 0");
  if (options.cache_bytes < 0) return invalid("cache_bytes must not be negative");
  if (options.kernels != COROSRV_KERNELS_AUTO && options.kernels != COROSRV_KERNELS_GGML) {
    return invalid("kernels must be a corosrv_kernels");
  }
  if (options.pooling < COROSRV_POOLING_MODEL || options.pooling > COROSRV_POOLING_RANK) {
    return invalid("pooling must be a corosrv_pooling");
  }
  if (options.reader_bytes < 1) return invalid("reader_bytes must be at least 1");
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
  for (size_t i = 0; i < sampling.n_biases; ++i) {
    const corosrv_bias& bias = sampling.biases[i];
    if (bias.token < 0 || bias.token >= vocabulary.size()) return invalid("logit_bias names an unknown token");
    if (std::isnan(bias.bias) || bias.bias == INFINITY) return invalid("logit_bias must be finite, or -infinity");
  }
  return Status::ok();
}

Status unsupported(const std::string& message) { return Status(COROSRV_UNSUPPORTED, message); }

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

bool are_known(const Token* tokens, size_t n_tokens, const Vocabulary& vocabulary) {
  return std::all_of(tokens, tokens + n_tokens, [&](Token token) { return token >= 0 && token < vocabulary.size(); });
}

Status check_task(const corosrv_task& task, const Backend& backend) {
  const Vocabulary& vocabulary = backend.vocabulary();
  if (const Status status = check_kind(task, backend.info()); !status.is_ok()) return status;
  if (task.n_tokens == 0) return invalid("the prompt has no tokens");
  if (!are_known(task.tokens, task.n_tokens, vocabulary)) return invalid("the prompt has an unknown token");
  for (int32_t i = 0; task.adapter_scales != nullptr && i < backend.info().n_adapters; ++i) {
    if (!std::isfinite(task.adapter_scales[i])) return invalid("the scale of an adapter must be finite");
  }
  if (task.max_tokens < -1) return invalid("max_tokens must be -1 or more");
  if (!(task.max_ms >= 0) || !std::isfinite(task.max_ms)) return invalid("max_ms must be 0 or more");
  for (size_t i = 0; i < task.n_stops; ++i) {
    if (task.stops[i].size == 0) return invalid("a stop string must not be empty");
  }
  return check_sampling(task.sampling, vocabulary);
}

std::vector<std::string> to_strings(const corosrv_text* texts, size_t n_texts) {
  std::vector<std::string> strings;
  for (size_t i = 0; i < n_texts; ++i) strings.emplace_back(texts[i].data, texts[i].size);
  return strings;
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

// Compiles what grammars there are; tasks in a row that point to the same text share one.
Status compile_grammars(Engine& engine, const corosrv_task* from, std::vector<Task>& tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const corosrv_text& text = from[i].sampling.grammar;
    if (text.size == 0) continue;
    if (i > 0 && from[i - 1].sampling.grammar.data == text.data && from[i - 1].sampling.grammar.size == text.size) {
      tasks[i].sampling.grammar = tasks[i - 1].sampling.grammar;
      continue;
    }
    const Status status = engine.compile({text.data, text.size}, tasks[i].sampling.grammar);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

// Turns breakers into tokens where DRY asks for them; tasks of one job mostly have the same, which are made once.
void compile_breakers(Engine& engine, const corosrv_task* from, std::vector<Task>& tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const corosrv_sampling& sampling = from[i].sampling;
    if (sampling.n_dry_breakers == 0 || !Dry::is_on(tasks[i].sampling)) continue;
    tasks[i].sampling.dry_breakers = engine.breakers(to_strings(sampling.dry_breakers, sampling.n_dry_breakers));
  }
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

// As many as compute the model anyway: the synthetic one needs none.
int32_t sampling_threads(const corosrv_options& options) {
  return options.synthetic == nullptr ? std::max(options.threads, 1) : 1;
}

BackendFactory backend_factory(const corosrv_options& options) {
  if (options.synthetic != nullptr) {
    return [synthetic = *options.synthetic, context = options.context, slots = options.slots](Status&) {
      return make_synthetic_backend(synthetic, context, slots);
    };
  }
#ifdef COROSRV_WITHOUT_LLAMA
  return [](Status& status) -> std::unique_ptr<Backend> {
    status = Status(COROSRV_INVALID, "this build has no libllama");
    return nullptr;
  };
#else
  // The caller's texts are gone when the model is loaded.
  const std::string model = options.model == nullptr ? "" : options.model;
  const std::vector<std::string> adapters(options.adapters, options.adapters + options.n_adapters);
  return [model, adapters, copied = options](Status& status) {
    corosrv_options mine = copied;
    mine.model = model.c_str();
    mine.adapters = nullptr;
    return make_llama_backend(mine, adapters, status);
  };
#endif
}

// The engine's model, or null and the reason why there is none.
const Backend* ready_backend(corosrv_engine* engine, Status& status) {
  if (!engine->fork_guard.is_same_process()) {
    status = forked();
    return nullptr;
  }
  const Backend* backend = engine->engine->backend();
  if (backend == nullptr) status = Status(COROSRV_NOT_READY, "the model is not loaded yet");
  return backend;
}

// What came out of a file may be anything.
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

// The model's vocabulary, or null where it has no such token.
const Vocabulary* vocabulary_with(corosrv_engine* engine, Token token) {
  Status status = Status::ok();
  const Backend* backend = ready_backend(engine, status);
  const bool is_known = backend != nullptr && token >= 0 && token < backend->vocabulary().size();
  return is_known ? &backend->vocabulary() : nullptr;
}

}  // namespace

const char* corosrv_llama_fingerprint(void) { return COROSRV_LLAMA_FINGERPRINT; }

int corosrv_engine_open(const corosrv_options* options, corosrv_engine** engine, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = check_options(*options);
    if (status.is_ok()) status = check_grammar_limits(options->grammars);
    if (!status.is_ok()) return status;
    Engine::Limits limits;
    limits.loop = {options->slots, options->batch, options->step_ms, static_cast<size_t>(options->cache_bytes),
                   sampling_threads(*options)};
    limits.queue = static_cast<size_t>(options->queue);
    limits.reader_bytes = static_cast<size_t>(options->reader_bytes);
    limits.grammars = to_grammar_limits(options->grammars);
    auto opened = std::make_unique<corosrv_engine>();
    opened->engine = std::make_unique<Engine>(limits, backend_factory(*options));
    if (opened->engine->fd() < 0) return Status(COROSRV_NO_DESCRIPTOR, "no file descriptor is left for the engine");
    *engine = opened.release();
    return Status::ok();
  });
}

int corosrv_engine_state(corosrv_engine* engine, int* state, char* message, size_t message_size) {
  if (!engine->fork_guard.is_same_process()) return report(forked(), message, message_size);
  std::string reason;
  *state = engine->engine->state(reason);
  report(Status(COROSRV_INTERNAL, reason), message, message_size);
  return COROSRV_OK;
}

int corosrv_engine_fd(corosrv_engine* engine) { return engine->engine->fd(); }

int corosrv_engine_info(corosrv_engine* engine, corosrv_model_info* info) {
  Status status = Status::ok();
  const Backend* backend = ready_backend(engine, status);
  if (backend == nullptr) return status.code();
  const ModelInfo& from = backend->info();
  *info = {from.context,
           from.context_train,
           backend->vocabulary().size(),
           from.n_embd,
           from.vocab_type,
           from.add_bos,
           from.bos,
           from.eos,
           from.n_params,
           from.size,
           from.own_kernels,
           from.packed_bytes,
           from.ftype.c_str(),
           from.description.c_str(),
           from.chat_template.c_str(),
           from.can_generate,
           from.n_vector,
           static_cast<int32_t>(from.pooling),
           from.add_eos,
           from.add_sep,
           from.sep,
           from.fim_prefix,
           from.fim_suffix,
           from.fim_middle,
           from.fim_repository,
           from.fim_file,
           from.rerank_template.c_str(),
           from.n_adapters};
  return COROSRV_OK;
}

int corosrv_engine_stats(corosrv_engine* engine, corosrv_stats* stats) {
  if (!engine->fork_guard.is_same_process()) return COROSRV_FORKED;
  *stats = engine->engine->stats();
  return COROSRV_OK;
}

int corosrv_engine_slots(corosrv_engine* engine, corosrv_slot* slots, size_t capacity) {
  return guarded(nullptr, 0, [&] {
    Status status = Status::ok();
    if (ready_backend(engine, status) == nullptr) return status;
    const std::vector<corosrv_slot> found = engine->engine->slots();
    std::copy_n(found.begin(), std::min(found.size(), capacity), slots);
    return Status::ok();
  });
}

int corosrv_slot_ask(corosrv_engine* engine, int action, int32_t slot, uint64_t owner,
                     const corosrv_slot_content* content, corosrv_errand** errand, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = Status::ok();
    const Backend* backend = ready_backend(engine, status);
    if (backend == nullptr) return status;
    if (action < COROSRV_SLOT_SAVE || action > COROSRV_SLOT_ERASE) return invalid("a slot knows no such action");
    SlotContent converted;
    if (action == COROSRV_SLOT_RESTORE) {
      status = content == nullptr ? invalid("there is nothing to restore") : check_content(*content, *backend);
      if (!status.is_ok()) return status;
      converted = to_slot_content(*content);
    }
    auto opened = std::make_unique<corosrv_errand>();
    opened->errand = std::make_shared<SlotErrand>(to_action(action), slot, owner, std::move(converted));
    status = engine->engine->ask(opened->errand);
    if (status.is_ok()) *errand = opened.release();
    return status;
  });
}

int corosrv_errand_fd(corosrv_errand* errand) { return errand->errand->fd(); }

int corosrv_errand_result(corosrv_errand* errand, corosrv_slot_content* content, char* message, size_t message_size) {
  if (!errand->fork_guard.is_same_process()) return report(forked(), message, message_size);
  return guarded(message, message_size, [&] {
    const SlotErrand& asked = *errand->errand;
    if (!asked.is_answered()) return Status(COROSRV_NOT_READY, "the slot is still busy");
    const SlotContent& found = asked.content();
    *content = {found.tokens.data(),
                found.tokens.size(),
                found.adapters.data(),
                found.adapters.size(),
                found.snapshot ? found.snapshot->bytes.get() : nullptr,
                found.snapshot ? found.snapshot->size : 0};
    return asked.status();
  });
}

void corosrv_errand_abandon(corosrv_errand* errand) {
  if (errand->fork_guard.is_same_process()) errand->errand->abandon();
}

void corosrv_errand_close(corosrv_errand* errand) {
  if (errand == nullptr) return;
  if (!errand->fork_guard.is_same_process()) {
    ::close(errand->errand->fd());  // the child's copy; the rest stays as the fork left it
    return;
  }
  errand->errand->abandon();
  delete errand;
}

int corosrv_tokenize(corosrv_engine* engine, const char* text, size_t text_size, int add_special, int parse_special,
                     int32_t* tokens, size_t capacity, size_t* n_tokens) {
  return guarded(nullptr, 0, [&] {
    Status status = Status::ok();
    const Backend* backend = ready_backend(engine, status);
    if (backend == nullptr) return status;
    const std::vector<Token> found =
        backend->vocabulary().tokenize({text, text_size}, add_special != 0, parse_special != 0);
    *n_tokens = found.size();
    std::copy_n(found.begin(), std::min(found.size(), capacity), tokens);
    return Status::ok();
  });
}

int corosrv_token_text(corosrv_engine* engine, int32_t token, int special, corosrv_text* text) {
  Status status = Status::ok();
  const Backend* backend = ready_backend(engine, status);
  if (backend == nullptr) return status.code();
  const Vocabulary& vocabulary = backend->vocabulary();
  if (token < 0 || token >= vocabulary.size()) return COROSRV_INVALID;
  const std::string_view found = special != 0 ? vocabulary.special_text(token) : vocabulary.text(token);
  *text = {found.data(), found.size()};
  return COROSRV_OK;
}

int corosrv_token_is_control(corosrv_engine* engine, int32_t token) {
  const Vocabulary* vocabulary = vocabulary_with(engine, token);
  return vocabulary != nullptr && vocabulary->is_control(token) ? 1 : 0;
}

int corosrv_token_is_end(corosrv_engine* engine, int32_t token) {
  const Vocabulary* vocabulary = vocabulary_with(engine, token);
  return vocabulary != nullptr && vocabulary->is_end_of_generation(token) ? 1 : 0;
}

int corosrv_submit(corosrv_engine* engine, const corosrv_task* tasks, size_t n_tasks, corosrv_reader** reader,
                   char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = Status::ok();
    const Backend* backend = ready_backend(engine, status);
    if (backend == nullptr) return status;
    if (n_tasks == 0) return invalid("a job needs at least one task");
    std::vector<Task> converted;
    for (size_t i = 0; i < n_tasks; ++i) {
      status = check_task(tasks[i], *backend);
      if (!status.is_ok()) return status;
      converted.push_back(to_task(tasks[i], i, backend->info()));
    }
    status = compile_grammars(*engine->engine, tasks, converted);
    if (!status.is_ok()) return status;
    compile_breakers(*engine->engine, tasks, converted);
    auto opened = std::make_unique<corosrv_reader>();
    status = engine->engine->submit(std::move(converted), opened->reader);
    if (status.is_ok()) *reader = opened.release();
    return status;
  });
}

int corosrv_engine_drain(corosrv_engine* engine, const char* message) {
  if (!engine->fork_guard.is_same_process()) return COROSRV_FORKED;
  if (message == nullptr) return COROSRV_INVALID;
  return guarded(nullptr, 0, [&] {
    engine->engine->drain(message);
    return Status::ok();
  });
}

void corosrv_engine_close(corosrv_engine* engine) {
  if (engine == nullptr) return;
  if (!engine->fork_guard.is_same_process()) {
    // The thread that is to be joined does not exist here, and the locks may be held for ever.
    ::close(engine->engine->fd());  // the child's copy
    return;
  }
  delete engine;
}

int corosrv_reader_fd(corosrv_reader* reader) { return reader->reader->fd(); }

int corosrv_reader_take(corosrv_reader* reader, int clear, corosrv_batch* batch) {
  if (!reader->fork_guard.is_same_process()) return COROSRV_FORKED;
  return guarded(nullptr, 0, [&] {
    reader->reader->take(reader->taken, clear != 0);
    reader->chunks.clear();
    for (const Chunk& chunk : reader->taken) reader->chunks.push_back(to_chunk(chunk));
    *batch = {reader->chunks.data(), reader->chunks.size()};
    return Status::ok();
  });
}

int corosrv_reader_cancel(corosrv_reader* reader) {
  if (!reader->fork_guard.is_same_process()) return COROSRV_FORKED;
  return guarded(nullptr, 0, [&] {
    reader->reader->cancel();
    return Status::ok();
  });
}

void corosrv_reader_close(corosrv_reader* reader) {
  if (reader == nullptr) return;
  if (!reader->fork_guard.is_same_process()) {
    ::close(reader->reader->fd());  // the child's copy; the rest stays as the fork left it
    return;
  }
  reader->reader->cancel();
  delete reader;
}

int corosrv_check_json(const char* text, size_t text_size, const corosrv_json_limits* limits, int* fault, size_t* at) {
  return guarded(nullptr, 0, [&] {
    const JsonFault found = find_json_fault({text, text_size}, *limits);
    *fault = found.kind;
    *at = found.at;
    return Status::ok();
  });
}
