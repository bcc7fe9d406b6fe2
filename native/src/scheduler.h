// Which sequence gets how many tokens this step; knows no backend, no clock and no thread.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "sequence.h"

namespace corosrv {

// A step's work: these sequences, each with this many of its pending tokens.
struct Plan {
  struct Item {
    Sequence* sequence;
    int32_t n_tokens;
  };
  std::vector<Item> items;
  int32_t n_decode = 0;  // rows
  int32_t n_prompt = 0;  // rows
};

// Owns all sequences: those that wait for a slot, in order of arrival, and those that have one.
class Scheduler {
 public:
  // `slots`: sequences that may run at once. `rows`: of one step, at most.
  Scheduler(int32_t slots, int32_t rows);

  void add(std::unique_ptr<Sequence> sequence);

  // Gives free slots to the sequences that wait longest; returns how many started.
  size_t admit(Clock::time_point now);

  // Running sequences get their one token first; where they are more than a step has rows, those that were left out
  // last time come first, and a quarter of the rows is kept for prompts. Up to `prompt_tokens` then go to prompts: half
  // to the one that started first, so that none starves, the rest to those with least left, so that a short prompt does
  // not wait for a long one.
  Plan plan(int32_t prompt_tokens);

  // Running sequences that take part in steps and are past their prompt.
  int32_t n_decoding() const;
  // Running sequences that take part in steps and still read their prompt.
  int32_t n_prefilling() const;

  // Calls `visit` with every sequence, running and waiting.
  template <typename Visit>
  void for_each(Visit visit) {
    for (auto& sequence : running_) visit(*sequence);
    for (auto& sequence : waiting_) visit(*sequence);
  }

  template <typename Visit>
  void for_each_running(Visit visit) {
    for (auto& sequence : running_) visit(*sequence);
  }

  // Lets go of what is done: returns the slots that are free again, and counts in `n_unstarted` the sequences that
  // ended before they had one.
  std::vector<int32_t> sweep(size_t& n_unstarted);

  size_t n_running() const { return running_.size(); }
  size_t n_waiting() const { return waiting_.size(); }
  // Something can be computed now.
  bool has_work() const;

 private:
  void plan_decodes(Plan& plan, int32_t rows);
  void plan_prompts(Plan& plan, int32_t prompt_tokens);

  const int32_t rows_;
  std::vector<int32_t> free_slots_;  // the lowest is last
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
};

}  // namespace corosrv
