#include "loop/engine.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "model/embedded_rows.h"

namespace corosrv {

namespace {

constexpr size_t kMaxGrammarBytesAlive = 64 << 20;

}  // namespace

Engine::Engine(const Limits& limits, BackendFactory make_backend, std::shared_ptr<Tape> tape, DraftFactory make_draft)
    : limits_(limits),
      inbox_(std::make_shared<Inbox>(limits.queue + static_cast<size_t>(limits.loop.slots), limits.tasks_of_owner)),
      tape_(std::move(tape)),
      grammars_(limits.grammars, kMaxGrammarBytesAlive) {
  if (!settled_.is_open()) return;  // the caller looks at fd()
  thread_ = std::thread(
      [this, make = std::move(make_backend), make_draft = std::move(make_draft)] { run(make, make_draft); });
}

void Engine::run(const BackendFactory& make_backend, const DraftFactory& make_draft) {
  pthread_setname_np(pthread_self(), "corosrv-decode");
  try {
    Status status = Status::ok();
    backend_ = make_backend(status, load_);
    if (backend_ && make_draft) draft_ = make_draft(*backend_, status, draft_load_);
    if (!backend_ || (make_draft && !draft_)) {
      settle(EngineState::kFailed, status.message());
      return;
    }
    loop_ = std::make_unique<DecodeLoop>(loop_limits(), *inbox_, *backend_, tape_.get(), draft_.get());
    ready_backend_.store(backend_.get(), std::memory_order_release);
    settle(EngineState::kReady, {});
    loop_->run();
    settle(EngineState::kStopped, "the engine was closed");
  } catch (const Tape::End&) {
    const std::string message = "the replay is over";
    settle(EngineState::kStopped, message);
    end_all(message);
  } catch (const std::exception& error) {
    const std::string message = std::string("the decode thread died: ") + error.what();
    settle(EngineState::kFailed, message);
    end_all(message);
  }
}

void Engine::end_all(const std::string& message) {
  inbox_->close(message);
  if (loop_) loop_->end_all(message);
  end_submissions(message);
}

// What is read in one piece may be as long as the context.
DecodeLoop::Limits Engine::loop_limits() const {
  DecodeLoop::Limits limits = limits_.loop;
  const ModelInfo& info = backend_->info();
  limits.reads_whole = info.reads_whole;
  limits.shared_cells = info.shared_cells;
  if (info.reads_whole) limits.rows = std::max(limits.rows, info.context);
  return limits;
}

void Engine::end_submissions(const std::string& message) {
  const Inbox::Mail mail = inbox_->take(true);
  for (const Submission& submission : mail.submissions) {
    submission.reader->push(error_chunk(submission.task.index, message));
  }
  for (const auto& request : mail.slot_requests) request->answer(Status(StatusCode::kClosed, message));
}

void Engine::settle(EngineState state, const std::string& message) {
  {
    MutexLock lock(mutex_);
    state_ = state;
    message_ = message;
  }
  settled_.signal();
}

EngineState Engine::state(std::string& message) {
  MutexLock lock(mutex_);
  message = message_;
  return state_;
}

Status Engine::show(const std::vector<Token>& tokens) {
  const Backend* model = backend();
  if (model == nullptr) return Status(StatusCode::kNotReady, "the model is not loaded yet");
  if (is_in_use_.load()) return Status(StatusCode::kInvalid, "tokens can be shown before the first task alone");
  backend_->show(tokens);
  inbox_->note_shown(tokens);
  return Status::ok();
}

Status Engine::compile(std::string_view gbnf, std::shared_ptr<const Grammar>& grammar) {
  const Backend* model = backend();
  if (model == nullptr) return Status(StatusCode::kNotReady, "the model is not loaded yet");
  is_in_use_.store(true);
  return grammars_.compile(gbnf, model->vocabulary(), grammar);
}

Status Engine::submit(std::vector<Task> tasks, std::shared_ptr<Reader>& reader) {
  const Backend* model = backend();
  if (model == nullptr) return Status(StatusCode::kNotReady, "the model is not loaded yet");
  const auto context = static_cast<size_t>(model->info().context);
  for (const Task& task : tasks) {
    if (const Status status = task.slot == -1 ? Status::ok() : check_slot(task.slot); !status.is_ok()) return status;
    if (const Status status = check_length(task, context); !status.is_ok()) return status;
    if (const Status status = check_rows(task); !status.is_ok()) return status;
  }
  is_in_use_.store(true);
  reader = std::make_shared<Reader>(limits_.reader_bytes, inbox_);
  return inbox_->submit(std::move(tasks), reader);
}

// A generation needs room for a token of its own. An earlier engine may have filled a context just so, unless it was to
// shift it then: what a shifted one holds cannot be computed from its tokens.
Status Engine::check_length(const Task& task, size_t context) {
  const size_t n_earlier = task.earlier.tokens.size();
  const bool may_be_full = task.vectors || (n_earlier > 0 && !task.shift);
  const size_t n_tokens = task.prompt.size() + n_earlier;
  if (n_tokens + (may_be_full ? 0 : 1) <= context) return Status::ok();
  return Status(StatusCode::kTooLong, std::string(n_earlier > 0 ? "the prompt with what was generated" : "the prompt") +
                                          " has " + std::to_string(n_tokens) +
                                          " tokens, and the context of a slot holds " + std::to_string(context));
}

// Rows that are not causal are computed in one batch.
Status Engine::check_rows(const Task& task) const {
  const int32_t n_rows = task.rows == nullptr ? 0 : task.rows->most_non_causal();
  if (n_rows <= limits_.loop.rows) return Status::ok();
  return Status(StatusCode::kInvalid, "an image has " + std::to_string(n_rows) +
                                          " rows that are read in one piece, and a step computes at most " +
                                          std::to_string(limits_.loop.rows) +
                                          ": send a smaller one, or start with a larger COROSRV_BATCH");
}

Status Engine::request_slot(const std::shared_ptr<SlotRequest>& request) {
  const Backend* model = backend();
  if (model == nullptr) return Status(StatusCode::kNotReady, "the model is not loaded yet");
  if (const Status status = check_slot(request->slot()); !status.is_ok()) return status;
  const size_t n_tokens = request->content().tokens.size();
  if (n_tokens > static_cast<size_t>(model->info().context)) {
    return Status(StatusCode::kTooLong, "the state has " + std::to_string(n_tokens) +
                                            " tokens, and the context of a slot holds " +
                                            std::to_string(model->info().context));
  }
  if (!request->is_open()) {
    return Status(StatusCode::kNoDescriptor,
                  "no file descriptor is left for a slot request: raise the limit (ulimit -n)");
  }
  return inbox_->request_slot(request);
}

Status Engine::check_slot(int32_t slot) const {
  if (slot >= 0 && slot < limits_.loop.slots) return Status::ok();
  return Status(StatusCode::kInvalid, "there is no slot " + std::to_string(slot) + ": they are numbered from 0 to " +
                                          std::to_string(limits_.loop.slots - 1));
}

Status Engine::set_side_process(int pidfd, SideShare share) {
  if (backend() == nullptr) return Status(StatusCode::kNotReady, "the model is not loaded yet");
  loop_->set_side_process(pidfd, share);
  return Status::ok();
}

Status Engine::side_process_held(Clock::duration& held) {
  if (backend() == nullptr) return Status(StatusCode::kNotReady, "the model is not loaded yet");
  held = loop_->side_process_held();
  return Status::ok();
}

std::vector<SlotStatus> Engine::slots() { return backend() == nullptr ? std::vector<SlotStatus>() : loop_->slots(); }

LoopStats Engine::stats() {
  if (backend() != nullptr) return loop_->snapshot();
  LoopStats stats;
  stats.slots = limits_.loop.slots;
  return stats;
}

void Engine::stop() {
  load_.give_up();
  draft_load_.give_up();
  inbox_->close("the server is shutting down");
  if (thread_.joinable()) thread_.join();
}

}  // namespace corosrv
