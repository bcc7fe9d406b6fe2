// Which sequence gets how many tokens this step; knows no backend, no clock and no thread.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "loop/owner_ledger.h"
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
  double n_true = 0;      // of these, those that are expected to come true
};

// Owns all sequences: those that wait for a slot, those that have one, and those that are parked until their reader is
// read.
class Scheduler {
 public:
  // `slots`: sequences that may run at once. `rows`: of one step, at most. `reads_whole`: a prompt is computed in one
  // piece, and none has more tokens than a step has rows. `shared_cells`: tokens that all slots hold together, at most,
  // and one alone as well; 0: each has room for a whole context. `window`, see ModelInfo: beyond it a sequence stops
  // wherever it is to be copied, for what is computed behind that makes the copy useless.
  Scheduler(int32_t slots, int32_t rows, bool reads_whole = false, int32_t shared_cells = 0, int32_t window = 0);

  void add(std::unique_ptr<Sequence> sequence);

  // Of the free slots, which are not empty, the one that a sequence had best get; or -1.
  using ChooseSlot = std::function<int32_t(const Sequence& sequence, const std::vector<int32_t>& free_slots)>;

  // Gives free slots to the sequences that are next; see WaitQueue. `choose`: called for those that want no slot of
  // their own, which get the lowest one where it has none. Parks those whose reader is full: a vector that one
  // step computes would not be stopped by it otherwise. Where slots share cells, the next one waits until there is room
  // for all of its prompt, and some tokens more of each that runs; nobody passes it meanwhile, so that none starves.
  // Returns how many started.
  size_t admit(Clock::time_point now, const ChooseSlot& choose = {});

  // Running sequences get their one token first, of those of kLastClass as many as `last_rows` says; where they are
  // more than may have one, those that were left out last time come first, and a quarter of the rows is kept for
  // prompts. Up to `prompt_tokens` then go to prompts: half to the one that started first of the owner whose turn it
  // is, so that none starves, the rest to those with least left until they, or one that follows them, can go on, so
  // that a short prompt does not wait for a long one. Rows that are not causal are planned whole, and may exceed both
  // numbers: each such item is to be a batch of its own.
  Plan plan(int32_t prompt_tokens, int32_t last_rows = std::numeric_limits<int32_t>::max());
  // The class of work that nobody waits for, as that of batches: it must not make the steps of others much longer.
  static constexpr int32_t kLastClass = 9;

  // These items of a plan have taken so long: they and their owners are charged for it, by what a row costs that is
  // decoded and one of a prompt; without these, all rows alike. Called before they are told that they were computed.
  void charge(const std::vector<Plan::Item>& items, double batch_s, double decode_row_s, double prompt_row_s);

  // The running sequence that is to lose its slot to the next of those that wait, or null. There is none while slots
  // are free. It is whose tier is worse, or whose class is worse by kClassGap where both are one owner's, or whose
  // owner has had kMostLead seconds more of the machine and runs more than its share. It goes on later where it was: so
  // whose work would be lost is not taken, nor who has just begun. Of several it is the one of the worst tier, of the
  // owner that has had most, of the worst class, who reads its prompt before who generates, and who started last.
  Sequence* to_displace(Clock::time_point now) const;
  static constexpr int32_t kClassGap = 2;
  static constexpr double kMostLead = 2;
  static constexpr int32_t kLeastTokens = 64;  // that it has computed since it started last
  static constexpr auto kLeastTime = std::chrono::seconds(1);
  // Takes its slot; it waits in its own class again, as if it had never had one.
  void displace(Sequence& sequence, Clock::time_point now);

  // Running sequences that take part in steps and are past their prompt.
  int32_t n_decoding() const;
  // Of these, those before kLastClass.
  int32_t n_decoding_first() const;
  // Whether all that read their prompts are of kLastClass, and nobody before it waits for what one of them reads.
  bool reads_for_last_class() const;
  // Running sequences that take part in steps and still read their prompt.
  int32_t n_prefilling() const;

  // The running sequence that holds, or is to compute, the longest prefix of `sequence`'s tokens with the same
  // adapters, and how long that is. Never one that waits for `sequence` itself.
  struct Leader {
    const Sequence* sequence = nullptr;
    size_t n_tokens = 0;
  };
  // Whether one can be copied where it has so many tokens in common with `sequence`.
  using MayLead = std::function<bool(const Sequence& other, size_t n_tokens)>;
  Leader leader_of(const Sequence& sequence, const MayLead& may_be_copied = {}) const;

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

  // The running sequence of the highest slot, when for a while there has been a free slot, the gap, between it and the
  // lowest that is in use; else null.
  Sequence* above_gap() const;
  // The lowest of the gaps, where there is one.
  int32_t slot_of_gap() const;
  bool is_in_use(int32_t slot) const;
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

  const OwnerLedger& ledger() const { return *ledger_; }
  // Nothing runs, waits or is parked.
  bool is_empty() const { return running_.empty() && waiting_.is_empty() && parked_.empty(); }
  size_t n_running() const { return running_.size(); }
  size_t n_waiting() const { return waiting_.size(); }
  size_t n_parked() const { return parked_.size(); }
  // Something can be computed now.
  bool has_work() const;

 private:
  bool has_free_slot() const { return static_cast<int32_t>(running_.size()) < capacity_ && !free_slots_.empty(); }
  template <typename Predicate>
  Sequence* first_running(Predicate is_so) const;
  std::unique_ptr<Sequence> next_to_start();
  bool waits_for_cells() const;
  bool may_displace(const Sequence& next, const Sequence& running, Clock::time_point now) const;
  bool fits_instead(const Sequence& next, const Sequence& running) const;
  bool is_worse(const Sequence& a, const Sequence& b) const;
  std::unique_ptr<Sequence> take_from_slot(Sequence& sequence);
  int32_t take_slot(const Sequence& sequence, const ChooseSlot& choose);
  int32_t lowest_slot_in_use() const;
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
  void plan_decodes(Plan& plan, int32_t rows, int32_t last_rows);
  void plan_prompts(Plan& plan, int32_t prompt_tokens);

  int32_t slots_;
  int32_t rows_;
  bool reads_whole_;
  int32_t shared_cells_;
  int32_t window_;
  int32_t capacity_;                 // sequences that may run: the slots, or fewer while memory is short
  int32_t n_calm_ = 0;               // plans since the slots in use were others
  std::vector<int32_t> free_slots_;  // the lowest is last
  // Of all owners that have sequences here; on the heap, so that a scheduler may be moved.
  std::unique_ptr<OwnerLedger> ledger_ = std::make_unique<OwnerLedger>();
  WaitQueue waiting_{*ledger_};
  std::vector<std::unique_ptr<Sequence>> running_;
  std::deque<std::unique_ptr<Sequence>> parked_;
};

}  // namespace corosrv
