// The decode thread and what other threads see of it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/event_fd.h"
#include "base/load_watch.h"
#include "base/thread_annotations.h"
#include "grammar/grammar_compiler.h"
#include "handover/inbox.h"
#include "handover/tape.h"
#include "loop/decode_loop.h"
#include "model/backend.h"
#include "sampling/breaker_cache.h"

namespace corosrv {

enum class EngineState { kStarting, kReady, kFailed, kStopped };

// Makes the model, and notes in the LoadWatch how far it is; called on the decode thread. Null, and a status with the
// reason, when it cannot. What it makes may go on noting as long as the engine lives.
using BackendFactory = std::function<std::unique_ptr<Backend>(Status&, LoadWatch&)>;
// The same for a model that guesses for this one.
using DraftFactory = std::function<std::unique_ptr<Backend>(const Backend&, Status&, LoadWatch&)>;

// Starts its thread when constructed and joins it in stop(). All public methods may be called from any thread.
class Engine {
 public:
  struct Limits {
    DecodeLoop::Limits loop;
    size_t queue;
    size_t reader_bytes;
    size_t tasks_of_owner = Inbox::kNoLimit;
    GrammarLimits grammars = {};
  };

  // `tape`: of the decode loop, or null; the decode thread's from now on. `make_draft`: empty where none guesses.
  Engine(const Limits& limits, BackendFactory make_backend, std::shared_ptr<Tape> tape = nullptr,
         DraftFactory make_draft = {});
  ~Engine() { stop(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  EngineState state(std::string& message);
  // Returns the part of the load that is done, of 1.
  double loaded_part() const { return load_.part(); }
  // Readable once the state is no longer EngineState::kStarting.
  int fd() const { return settled_.get(); }

  // Null until the model is loaded; lives as long as the engine.
  const Backend* backend() const { return ready_backend_.load(std::memory_order_acquire); }

  // Makes these control tokens of the model add their text to answers; see Vocabulary::show. Refused after the first
  // task or grammar.
  Status show(const std::vector<Token>& tokens);

  // The same for what a replay is told was shown, whenever that is; the decode thread.
  void show_replayed(const std::vector<Token>& tokens) { backend_->show(tokens); }

  // A grammar of the model's tokens, for a task; takes milliseconds.
  Status compile(std::string_view gbnf, std::shared_ptr<const Grammar>& grammar);

  // DRY's breakers in the model's tokens, for a task. After backend() was there.
  std::shared_ptr<const DryBreakers> breakers(const std::vector<std::string>& texts) {
    return breakers_.get(texts, backend()->vocabulary());
  }

  // Checks and queues `tasks`; `reader` is where their chunks come out.
  Status submit(std::vector<Task> tasks, std::shared_ptr<Reader>& reader);
  // See Inbox::retry_after.
  double retry_after(size_t n_tasks, uint64_t owner) { return inbox_->retry_after(n_tasks, owner); }
  // Checks and queues; the request is answered in the end, whatever happens to the engine.
  Status request_slot(const std::shared_ptr<SlotRequest>& request);
  void drain(const std::string& reason) { inbox_->drain(reason); }
  // See SideProcess::set and held; takes over `pidfd`.
  Status set_side_process(int pidfd, SideShare share);
  Status side_process_held(Clock::duration& held);
  LoopStats stats();
  // See DecodeLoop::draft_trouble.
  std::string draft_trouble() { return backend() == nullptr ? std::string() : loop_->draft_trouble(); }
  // Every slot; none before the model is loaded.
  std::vector<SlotStatus> slots();

  // Ends everything and waits for the thread: one step, or the tensor that is being read. Twice is harmless.
  void stop();

 private:
  void run(const BackendFactory& make_backend, const DraftFactory& make_draft);
  DecodeLoop::Limits loop_limits() const;
  static Status check_length(const Task& task, size_t context);
  Status check_rows(const Task& task) const;
  Status check_slot(int32_t slot) const;
  void settle(EngineState state, const std::string& message);
  void end_all(const std::string& message);
  void end_submissions(const std::string& message);

  const Limits limits_;
  const std::shared_ptr<Inbox> inbox_;  // shared with the readers, which may outlive the engine
  const EventFd settled_;
  const std::shared_ptr<Tape> tape_;
  LoadWatch load_;
  LoadWatch draft_load_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> draft_;  // null: none guesses
  std::unique_ptr<DecodeLoop> loop_;
  // Pairs the decode thread's release store with everybody's acquire load: whoever sees the pointer sees the model
  // and the loop.
  std::atomic<const Backend*> ready_backend_{nullptr};
  std::atomic<bool> is_in_use_{false};  // a task or a grammar may have read the vocabulary

  GrammarCompiler grammars_;
  BreakerCache breakers_;

  Mutex mutex_;
  EngineState state_ GUARDED_BY(mutex_) = EngineState::kStarting;
  std::string message_ GUARDED_BY(mutex_);

  std::thread thread_;  // last: starts when all else is there
};

}  // namespace corosrv
