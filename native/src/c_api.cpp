// The C API: check, convert, catch; no logic.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "c_check.h"
#include "c_convert.h"
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
    limits.loop.queue_s = options->queue_s;
    limits.loop.stall_s = options->stall_s;
    limits.queue = static_cast<size_t>(options->queue);
    if (options->tasks_of_owner > 0) limits.tasks_of_owner = static_cast<size_t>(options->tasks_of_owner);
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
