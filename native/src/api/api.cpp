// The C API: check, convert, catch; no logic. Here the engine and its model; its vocabulary, jobs and slots have files
// of their own.
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/handles.h"
#include "api/json_limits.h"
#include "api/task_bytes.h"
#include "api/to_c.h"
#include "api/to_core.h"
#ifndef COROSRV_WITHOUT_LLAMA
#include "llama/backend.h"
#endif
#include "model/synthetic_backend.h"

#ifndef COROSRV_LLAMA_FINGERPRINT
#define COROSRV_LLAMA_FINGERPRINT ""
#endif

using namespace corosrv;

namespace {

BackendFactory backend_factory(const corosrv_options& options) {
  if (options.synthetic != nullptr) {
    return [synthetic = to_synthetic_options(*options.synthetic), context = options.context, slots = options.slots](
               Status&, LoadWatch&) { return make_synthetic_backend(synthetic, context, slots); };
  }
#ifdef COROSRV_WITHOUT_LLAMA
  return [](Status& status, LoadWatch&) -> std::unique_ptr<Backend> {
    status = Status(StatusCode::kInvalid, "this build has no libllama");
    return nullptr;
  };
#else
  return [model = to_model_options(options)](Status& status, LoadWatch& load) {
    return make_llama_backend(model, load, status);
  };
#endif
}

// Makes nothing where no draft model is wanted.
DraftFactory draft_factory(const corosrv_options& options) {
  if (options.draft == nullptr || *options.draft == '\0') return {};
#ifdef COROSRV_WITHOUT_LLAMA
  return {};
#else
  return [draft = to_draft_options(options), path = std::string(options.model)](
             const Backend& model, Status& status, LoadWatch& load) -> std::unique_ptr<Backend> {
    std::unique_ptr<Backend> backend = make_llama_backend(draft, load, status);
    if (!backend) return nullptr;
    status = check_draft(model, *backend, file_name(draft.path) + " for " + file_name(path));
    return status.is_ok() ? std::move(backend) : nullptr;
  };
#endif
}

// Makes a task of what a recording has of it; in the decode thread, when the model is loaded.
Status make_recorded(corosrv_engine* engine, const std::string& recorded, Task& task) {
  MutexLock lock(engine->opening);
  StoredTask stored;
  const Backend& backend = *engine->engine->backend();
  if (const Status status = stored.read(recorded, backend.info()); !status.is_ok()) return status;
  std::vector<Task> tasks;
  if (const Status status = make_tasks(engine, backend, &stored.task(), 1, tasks); !status.is_ok()) return status;
  task = std::move(tasks.front());
  return Status::ok();
}

// The copies of the descriptors are the tape's.
Status open_tape(const corosrv_options& options, corosrv_engine& engine, std::shared_ptr<Tape>& tape) {
  const int fd = options.replay_fd > 0 ? options.replay_fd : options.record_fd;
  if (fd <= 0) return Status::ok();
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return Status(StatusCode::kNoDescriptor, "no file descriptor is left for the recording");
  if (options.replay_fd <= 0) {
    tape = engine.recorder = std::make_shared<Recorder>(copy, static_cast<uint64_t>(options.record_bytes));
    return Status::ok();
  }
  Player::Options wanted;
  if (options.replay_until > 0) wanted.until = static_cast<uint64_t>(options.replay_until);
  wanted.tells_steps = (options.replay_tells & 1) != 0;
  wanted.tells_texts = (options.replay_tells & 2) != 0;
  const auto make = [&engine](const std::string& recorded, Task& task) {
    return make_recorded(&engine, recorded, task);
  };
  const auto show = [&engine](const std::vector<Token>& tokens) {
    MutexLock lock(engine.opening);
    engine.engine->show_replayed(tokens);
  };
  tape = engine.player = std::make_shared<Player>(copy, wanted, make, show);
  if (engine.player->can_begin()) return Status::ok();
  return invalid(
      "the recording has nothing that could be replayed: its server ended, or broke off, before its first "
      "record");
}

}  // namespace

const char* corosrv_llama_fingerprint(void) { return COROSRV_LLAMA_FINGERPRINT; }

int corosrv_engine_open(const corosrv_options* options, corosrv_engine** engine, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = check_options(*options);
    if (status.is_ok()) status = check_grammar_limits(options->grammars);
    if (!status.is_ok()) return status;
    auto opened = std::make_unique<corosrv_engine>();
    opened->vocabulary.engine = opened.get();
    // What a recording has was within the limit.
    const size_t row_bytes = options->replay_fd > 0 ? SIZE_MAX : static_cast<size_t>(options->row_bytes);
    opened->row_bytes = std::make_shared<RowBytes>(row_bytes);
    std::shared_ptr<Tape> tape;
    MutexLock lock(opened->opening);
    if (status = open_tape(*options, *opened, tape); !status.is_ok()) return status;
    opened->engine = std::make_unique<Engine>(to_engine_limits(*options), backend_factory(*options), std::move(tape),
                                              draft_factory(*options));
    if (opened->engine->fd() < 0) return Status(StatusCode::kNoDescriptor, "no file descriptor is left for the engine");
    *engine = opened.release();
    return Status::ok();
  });
}

int corosrv_engine_state(corosrv_engine* engine, int* state, char* message, size_t message_size) {
  if (!engine->fork_guard.is_same_process()) return report(forked(), message, message_size);
  std::string reason;
  *state = to_c(engine->engine->state(reason));
  report(Status(StatusCode::kInternal, reason), message, message_size);
  return COROSRV_OK;
}

double corosrv_engine_loaded_part(corosrv_engine* engine) { return engine->engine->loaded_part(); }

int corosrv_engine_fd(corosrv_engine* engine) { return engine->engine->fd(); }

int corosrv_engine_info(corosrv_engine* engine, corosrv_model_info* info) {
  Status status = Status::ok();
  const Backend* backend = ready_backend(engine, status);
  if (backend == nullptr) return to_c(status.code());
  *info = to_c(backend->info(), backend->vocabulary().size());
  return COROSRV_OK;
}

int corosrv_engine_stats(corosrv_engine* engine, corosrv_stats* stats) {
  if (!engine->fork_guard.is_same_process()) return COROSRV_FORKED;
  *stats = to_c(engine->engine->stats());
  return COROSRV_OK;
}

int corosrv_engine_recording(corosrv_engine* engine, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    if (!engine->fork_guard.is_same_process()) return forked();
    const std::string trouble = engine->recorder == nullptr ? std::string() : engine->recorder->trouble();
    return trouble.empty() ? Status::ok() : Status(StatusCode::kInternal, trouble);
  });
}

int corosrv_engine_draft(corosrv_engine* engine, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    if (!engine->fork_guard.is_same_process()) return forked();
    const std::string trouble = engine->engine->draft_trouble();
    return trouble.empty() ? Status::ok() : Status(StatusCode::kInternal, trouble);
  });
}

int corosrv_engine_replay(corosrv_engine* engine, corosrv_replay* replay) {
  return guarded(nullptr, 0, [&] {
    if (!engine->fork_guard.is_same_process()) return forked();
    if (engine->player == nullptr) return invalid("nothing is replayed");
    ReplayCounts counts;
    engine->lines = engine->player->take_lines(counts);
    *replay = {counts.steps,        counts.steps_differ,    counts.texts,
               counts.texts_differ, counts.is_over ? 1 : 0, engine->lines.c_str()};
    return Status::ok();
  });
}

int corosrv_engine_set_side_process(corosrv_engine* engine, int pidfd, double share, double itl_s, double usual_s) {
  return guarded(nullptr, 0, [&] {
    Status status = Status::ok();
    if (ready_backend(engine, status) == nullptr) return status;
    if (!(share >= 0 && itl_s >= 0 && usual_s >= 0)) return invalid("the times of a side process are not negative");
    const int copy = pidfd < 0 ? -1 : ::fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
    if (pidfd >= 0 && copy < 0) return Status(StatusCode::kNoDescriptor, "no file descriptor is left");
    return engine->engine->set_side_process(copy, {share, itl_s, usual_s});  // it is ready, and takes the copy over
  });
}

int corosrv_engine_side_process_held(corosrv_engine* engine, double* held_s) {
  return guarded(nullptr, 0, [&] {
    Status status = Status::ok();
    if (ready_backend(engine, status) == nullptr) return status;
    Clock::duration held = Clock::duration::zero();
    status = engine->engine->side_process_held(held);
    *held_s = seconds(held);
    return status;
  });
}

int corosrv_engine_retry_after(corosrv_engine* engine, size_t n_tasks, uint64_t owner, double* seconds) {
  if (!engine->fork_guard.is_same_process()) return COROSRV_FORKED;
  return guarded(nullptr, 0, [&] {
    *seconds = engine->engine->retry_after(n_tasks, owner);
    return Status::ok();
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

int corosrv_check_json(const char* text, size_t text_size, const corosrv_json_limits* limits, int* fault, size_t* at) {
  return guarded(nullptr, 0, [&] {
    const JsonFault found = find_json_fault({text, text_size}, *limits);
    *fault = found.kind;
    *at = found.at;
    return Status::ok();
  });
}
