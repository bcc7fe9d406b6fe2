#include "loop/engine.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace corosrv {

namespace {

constexpr size_t kMaxGrammarBytesAlive = 64 << 20;

}  // namespace

Engine::Engine(const Limits& limits, BackendFactory make_backend)
    : limits_(limits),
      inbox_(std::make_shared<Inbox>(limits.queue + static_cast<size_t>(limits.loop.slots), limits.tasks_of_owner)),
      grammars_(limits.grammars, kMaxGrammarBytesAlive) {
  if (!settled_.is_open()) return;  // the caller looks at fd()
  thread_ = std::thread([this, make = std::move(make_backend)] { run(make); });
}

void Engine::run(const BackendFactory& make_backend) {
  pthread_setname_np(pthread_self(), "corosrv-decode");
  try {
    Status status = Status::ok();
    backend_ = make_backend(status);
    if (!backend_) {
      settle(COROSRV_FAILED, status.message());
      return;
    }
    loop_ = std::make_unique<DecodeLoop>(loop_limits(), *inbox_, *backend_);
    ready_backend_.store(backend_.get(), std::memory_order_release);
    settle(COROSRV_READY, {});
    loop_->run();
    settle(COROSRV_STOPPED, "the engine was closed");
  } catch (const std::exception& error) {
    const std::string message = std::string("the decode thread died: ") + error.what();
    settle(COROSRV_FAILED, message);
    inbox_->close(message);
    if (loop_) loop_->end_all(message);
    end_submissions(message);
  }
}

// What is read in one piece may be as long as the context.
DecodeLoop::Limits Engine::loop_limits() const {
  DecodeLoop::Limits limits = limits_.loop;
  const ModelInfo& info = backend_->info();
  limits.reads_whole = info.reads_whole;
  if (info.reads_whole) limits.rows = std::max(limits.rows, info.context);
  return limits;
}

void Engine::end_submissions(const std::string& message) {
  const Inbox::Mail mail = inbox_->take(true);
  for (const Submission& submission : mail.submissions) {
    submission.reader->push(error_chunk(submission.task.index, message));
  }
  for (const auto& errand : mail.errands) errand->answer(Status(COROSRV_CLOSED, message));
}

void Engine::settle(corosrv_state state, const std::string& message) {
  {
    MutexLock lock(mutex_);
    state_ = state;
    message_ = message;
  }
  settled_.signal();
}

corosrv_state Engine::state(std::string& message) {
  MutexLock lock(mutex_);
  message = message_;
  return state_;
}

Status Engine::compile(std::string_view gbnf, std::shared_ptr<const Grammar>& grammar) {
  const Backend* model = backend();
  if (model == nullptr) return Status(COROSRV_NOT_READY, "the model is not loaded yet");
  return grammars_.compile(gbnf, model->vocabulary(), grammar);
}

Status Engine::submit(std::vector<Task> tasks, std::shared_ptr<Reader>& reader) {
  const Backend* model = backend();
  if (model == nullptr) return Status(COROSRV_NOT_READY, "the model is not loaded yet");
  const auto context = static_cast<size_t>(model->info().context);
  for (const Task& task : tasks) {
    if (const Status status = task.slot == -1 ? Status::ok() : check_slot(task.slot); !status.is_ok()) return status;
    // A generation needs room for a token of its own.
    if (task.prompt.size() + (task.vectors ? 0 : 1) > context) {
      return Status(COROSRV_TOO_LONG, "the prompt has " + std::to_string(task.prompt.size()) +
                                          " tokens, and the context of a slot holds " + std::to_string(context));
    }
  }
  reader = std::make_shared<Reader>(limits_.reader_bytes, inbox_);
  return inbox_->submit(std::move(tasks), reader);
}

Status Engine::ask(const std::shared_ptr<SlotErrand>& errand) {
  const Backend* model = backend();
  if (model == nullptr) return Status(COROSRV_NOT_READY, "the model is not loaded yet");
  if (const Status status = check_slot(errand->slot()); !status.is_ok()) return status;
  const size_t n_tokens = errand->content().tokens.size();
  if (n_tokens > static_cast<size_t>(model->info().context)) {
    return Status(COROSRV_TOO_LONG, "the state has " + std::to_string(n_tokens) +
                                        " tokens, and the context of a slot holds " +
                                        std::to_string(model->info().context));
  }
  if (!errand->is_open()) {
    return Status(COROSRV_NO_DESCRIPTOR, "no file descriptor is left for an errand: raise the limit (ulimit -n)");
  }
  return inbox_->ask(errand);
}

Status Engine::check_slot(int32_t slot) const {
  if (slot >= 0 && slot < limits_.loop.slots) return Status::ok();
  return Status(COROSRV_INVALID, "there is no slot " + std::to_string(slot) + ": they are numbered from 0 to " +
                                     std::to_string(limits_.loop.slots - 1));
}

std::vector<corosrv_slot> Engine::slots() {
  return backend() == nullptr ? std::vector<corosrv_slot>() : loop_->slots();
}

corosrv_stats Engine::stats() {
  if (backend() != nullptr) return loop_->snapshot();
  corosrv_stats stats{};
  stats.slots = limits_.loop.slots;
  return stats;
}

void Engine::stop() {
  inbox_->close("the server is shutting down");
  if (thread_.joinable()) thread_.join();
}

}  // namespace corosrv
