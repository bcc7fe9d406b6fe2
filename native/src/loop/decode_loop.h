// The decode thread's work: take, plan, decode, sample, emit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "handover/inbox.h"
#include "handover/signals.h"
#include "handover/slot_request.h"
#include "handover/tape.h"
#include "loop/draft_model.h"
#include "loop/idle_slots.h"
#include "loop/prefix_sharing.h"
#include "loop/scheduler.h"
#include "loop/side_process.h"
#include "loop/slot_board.h"
#include "loop/slot_memory.h"
#include "loop/step_budget.h"
#include "loop/thread_choice.h"
#include "loop/time_limits.h"
#include "model/backend.h"

namespace corosrv {

// Runs in one thread, which owns the backend. Others reach it through the inbox, their readers and snapshot().
class DecodeLoop {
 public:
  struct Limits {
    int32_t slots;
    int32_t rows;              // of one step, at most
    double step_ms;            // target while sequences decode
    size_t cache_bytes = 0;    // of saved prefixes, at most; 0 shares none
    int32_t threads = 1;       // that compute a step, at most
    bool reads_whole = false;  // a prompt is computed in one piece
    double queue_s = 0;        // that a task may wait for its first slot; 0: as long as it takes
    double stall_s = 0;        // that a reader may be full; 0: as long as it is
    int32_t shared_cells = 0;  // tokens that all slots hold together, at most; 0: each has room for a whole context
    double idle_s = 60;        // that a slot keeps its memory after its last use
    int32_t drafted_rows = 0;  // guesses of one step, at most; 0: none are made
    double draft_p_min = 0;    // probability of a guess of the draft model, at least
  };

  // `inbox`, `backend`, `tape` and `draft` outlive the loop. `tape`: null where nothing is recorded, or replayed.
  // `draft`: a model that guesses, with as many slots; or null.
  DecodeLoop(const Limits& limits, Inbox& inbox, Backend& backend, Tape* tape = nullptr, Backend* draft = nullptr);

  // Serves until the inbox closes; every sequence has had its terminal chunk then. Throws nothing that a request
  // caused.
  void run();

  // Ends every sequence with an error chunk, and every request; the decode thread, after run() has thrown.
  void end_all(const std::string& reason, const char* code = "");

  // Any thread: counters as of the last step.
  LoopStats snapshot();
  std::vector<SlotStatus> slots() { return board_.read(); }
  // Any thread: why the draft model guesses no more; empty while it does, or there is none.
  std::string draft_trouble();

  // Any thread: see SideProcess::set and held.
  void set_side_process(int pidfd, SideShare share) { side_process_.set(pidfd, share); }
  Clock::duration side_process_held() { return side_process_.held(); }

 private:
  Clock::time_point now() { return tape_ == nullptr ? Clock::now() : tape_->now(); }
  bool pass();
  void begin_anew();
  void tape_ends(const Scheduler::Swept& swept);
  void choose_threads();
  Plan plan();
  void tape_plan(const Plan& plan);
  void tape_batch();
  void take(Inbox::Mail mail);
  void add(Submission submission);
  void end_late();
  void answer_slot_requests();
  void step();
  void draft(Plan& plan);
  void note_paused();
  void lend_slots();
  void free_cells();
  void lend_cells(int32_t n_cells);
  void shift_full(const Plan& plan);
  void compute(const std::vector<Plan::Item>& items);
  void charge(const std::vector<Plan::Item>& items);
  Status run(const std::vector<Plan::Item>& items);
  void advance(const std::vector<Plan::Item>& items);
  void check_rows(const std::vector<Plan::Item>& items);
  void score(const std::vector<Plan::Item>& items);
  void fail(std::vector<Plan::Item> items, const Status& status);
  bool drop_drafts(std::vector<Plan::Item>& items);
  void wipe_poisoned(const std::vector<Plan::Item>& items);
  void forget_pending(Sequence& sequence);
  void make_room();
  void collect(Sequence& sequence, size_t first_row, int32_t n_tokens);
  void displace(Clock::time_point now);
  void preempt(Sequence& sequence);
  void settle();
  void tell();
  void signal();
  void give_back_idle();
  void publish();

  const Limits limits_;
  Inbox& inbox_;
  Backend& backend_;
  Backend* const draft_;
  Tape* const tape_;
  const bool computes_aside_;  // see ModelInfo
  LoopStats stats_;            // the decode thread's own; outlives the sequences below, which count in it
  Signals signals_;            // outlives them as well
  Scheduler scheduler_;
  PrefixCache cache_;
  SlotMemory memory_;
  PrefixSharing sharing_;
  std::vector<std::shared_ptr<SlotRequest>> slot_requests_;  // that wait until their slot is idle, and has room
  bool waits_to_restore_ = false;                            // one of them, for what runs to leave it cells
  SlotBoard board_;
  SideProcess side_process_;
  StepBudget budget_;
  std::optional<DraftModel> draft_model_;  // of draft_
  ThreadChoice thread_choice_;
  TimeLimits time_limits_;
  IdleSlots idle_slots_;
  std::vector<Row> rows_;
  Clock::time_point charged_;    // up to when this step is charged for
  double uncharged_s_ = 0;       // of the steps before
  std::vector<uint64_t> ended_;  // owners of sequences whose ends are to be told
  bool is_out_of_room_ = false;  // the step that runs found no room in the KV cache

  Mutex mutex_;
  LoopStats published_ GUARDED_BY(mutex_);
  std::string draft_trouble_ GUARDED_BY(mutex_);
};

}  // namespace corosrv
