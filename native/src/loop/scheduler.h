// Which sequence gets how many tokens this step; knows no backend, no clock and no thread.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "loop/sequence.h"
#include "loop/wait_queue.h"

namespace corosrv {

// A step's work: these sequences, each with this many of its pending tokens, guesses behind them included, or of its
// pending embedding rows.
struct Plan {
  struct Item {
    Sequence* sequence;
    int32_t n_tokens;
  };
  std::vector<Item> items;
  int32_t n_decode = 0;   // rows
  int32_t n_prompt = 0;   // rows
  int32_t n_drafted = 0;  // rows, of guesses
};

// Owns all sequences: those that wait for a slot, those that have one, and those that are parked until their reader is
// read.
class Scheduler {
 public:
  // `slots`: sequences that may run at once. `rows`: of one step, at most. `reads_whole`: a prompt is computed in one
  // piece, and none has more tokens than a step has rows. `shared_cells`: tokens that all slots hold together, at most,
  // and one alone as well; 0: each has room for a whole context.
  Scheduler(int32_t slots, int32_t rows, bool reads_whole = false, int32_t shared_cells = 0);

  void add(std::unique_ptr<Sequence> sequence);

  // Gives free slots to the sequences that are next; see WaitQueue. Parks those whose reader is full: a vector that one
  // step computes would not be stopped by it otherwise. Where slots share cells, the next one waits until there is room
  // for all of its prompt, and some tokens more of each that runs; nobody passes it meanwhile, so that none starves.
  // Returns how many started.
  size_t admit(Clock::time_point now);

  // Running sequences get their one token first; where they are more than a step has rows, those that were left out
  // last time come first, and a quarter of the rows is kept for prompts. Up to `prompt_tokens` then go to prompts: half
  // to the one that started first, so that none starves, the rest to those with least left until they, or one that
  // follows them, can go on, so that a short prompt does not wait for a long one. Rows that are not causal are planned
  // whole, and may exceed both numbers: each such item is to be a batch of its own.
  Plan plan(int32_t prompt_tokens);

  // Running sequences that take part in steps and are past their prompt.
  int32_t n_decoding() const;
  // Running sequences that take part in steps and still read their prompt.
  int32_t n_prefilling() const;

  // The running sequence that holds, or is to compute, the longest prefix of `sequence`'s tokens with the same
  // adapters, and how long that is. Never one that waits for `sequence` itself.
  struct Leader {
    const Sequence* sequence = nullptr;
    size_t n_tokens = 0;
  };
  Leader leader_of(const Sequence& sequence) const;

  // Takes the slot of a running sequence, which goes on later: as the first of those that wait or, where its reader is
  // full, once there is room (unpark()).
  void preempt(Sequence& sequence);
  // Lets parked sequences that are no longer paused wait for a slot again, before all others.
  void unpark();
  // A running sequence that is paused while others wait for its slot, or for its cells; or null.
  Sequence* idle_holder() const;
  // A running sequence that is paused, or null.
  Sequence* paused() const;
  // The running sequence that is paused or, where none is, that started last: whoever ran first comes to its end.
  Sequence* first_to_give_way() const;
  // Whether slots share cells, and what runs leaves fewer than so many of them, with each one's known tokens computed.
  bool lacks(int32_t n_cells) const;
  // The memory has no room for as many sequences as run now: no more are admitted until one of them ends.
  void hold_admission() { capacity_ = static_cast<int32_t>(running_.size()); }

  // The running sequence of the highest slot, when there has been a free slot below it for a while; else null.
  Sequence* above_gap() const;
  bool is_in_use(int32_t slot) const;
  int32_t lowest_free_slot() const { return free_slots_.back(); }
  // `sequence` now lives in this free slot.
  void move(Sequence& sequence, int32_t slot);

  // Calls `visit` with every sequence: running, parked and waiting.
  template <typename Visit>
  void for_each(Visit visit) {
    for_each_started(visit);
    waiting_.for_each(visit);
  }

  // Those that run and those that are parked.
  template <typename Visit>
  void for_each_started(Visit visit) {
    for_each_running(visit);
    for (auto& sequence : parked_) visit(*sequence);
  }

  template <typename Visit>
  void for_each_running(Visit visit) {
    for (auto& sequence : running_) visit(*sequence);
  }

  // What is done: those that had a slot, which is free again, and those that had none.
  struct Swept {
    std::vector<std::unique_ptr<Sequence>> from_slots;
    std::vector<std::unique_ptr<Sequence>> others;
  };
  // Lets go of it.
  Swept sweep();

  // Nothing runs, waits or is parked.
  bool is_empty() const { return running_.empty() && waiting_.is_empty() && parked_.empty(); }
  size_t n_running() const { return running_.size(); }
  size_t n_waiting() const { return waiting_.size(); }
  size_t n_parked() const { return parked_.size(); }
  // Something can be computed now.
  bool has_work() const;

 private:
  bool has_free_slot() const { return static_cast<int32_t>(running_.size()) < capacity_ && !free_slots_.empty(); }
  std::unique_ptr<Sequence> next_to_start();
  WaitQueue::Running running_of_owners() const;
  bool waits_for_cells() const;
  int32_t take_slot(const Sequence& sequence);
  void free_slot(int32_t slot);
  void release_followers(const Sequence& leader);
  // A sequence that reads its prompt, and how many tokens until it, or one that follows it, can go on. The greatest of
  // these is who should be read first.
  struct Reading {
    Sequence* sequence;
    int32_t n_awaited;
    bool operator<(const Reading& other) const {
      if (n_awaited != other.n_awaited) return n_awaited > other.n_awaited;
      return sequence->started() > other.sequence->started();
    }
  };
  std::vector<Reading> all_reading() const;
  void plan_decodes(Plan& plan, int32_t rows);
  void plan_prompts(Plan& plan, int32_t prompt_tokens);

  int32_t slots_;
  int32_t rows_;
  bool reads_whole_;
  int32_t shared_cells_;
  int32_t capacity_;                 // sequences that may run: the slots, or fewer while memory is short
  int32_t n_calm_ = 0;               // plans since the slots in use were others
  std::vector<int32_t> free_slots_;  // the lowest is last
  WaitQueue waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::deque<std::unique_ptr<Sequence>> parked_;
};

}  // namespace corosrv
