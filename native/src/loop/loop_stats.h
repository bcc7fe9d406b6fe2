// Counters and histograms that the decode loop keeps about itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "model/types.h"

namespace corosrv {

// Bucket i counts observations of at most 0.001 * 2^i seconds; the last one counts all others.
struct Histogram {
  std::array<uint64_t, 16> buckets{};
  double sum = 0;  // seconds

  void observe(double observed_s) {
    size_t bucket = 0;
    for (double bound = 0.001; observed_s > bound && bucket + 1 < buckets.size(); bound *= 2) ++bucket;
    ++buckets[bucket];
    sum += observed_s;
  }
};

// A value: the decode thread counts in its own and publishes copies.
struct LoopStats {
  uint64_t tasks_stop = 0;
  uint64_t tasks_length = 0;
  uint64_t tasks_cancelled = 0;
  uint64_t tasks_error = 0;
  uint64_t tasks_refused = 0;  // queue full
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t drafts = 0;                 // times that next tokens were guessed
  uint64_t draft_tokens = 0;           // guesses that were computed
  uint64_t draft_accepted_tokens = 0;  // of these, those that came true
  uint64_t draft_model_tokens = 0;     // of draft_tokens, those of the draft model
  uint64_t draft_model_accepted_tokens = 0;
  uint64_t steps = 0;
  uint64_t eventfd_writes = 0;
  uint64_t readers_polled = 0;  // readers that got no descriptor and are looked at again and again
  uint64_t preempted = 0;       // times that a task lost its slot and went on later
  uint64_t later_tokens = 0;    // of ended tasks, generated behind their first one: those that decode_s went into
  uint64_t slot_steps = 0;      // slots in use, summed over the steps
  uint64_t longest_task = 0;    // tokens of one, its prompt included
  double step_s = 0;            // seconds spent in steps
  double prompt_s = 0;          // of ended tasks: from the slot to the first token
  double decode_s = 0;          // of ended tasks: from the first token to the last
  int32_t threads = 0;          // that compute a step
  int32_t slots = 0;            // in all
  int32_t running = 0;          // slots in use
  int32_t waiting = 0;          // tasks for a slot
  int32_t paused = 0;           // with or without a slot, and waiting for their reader to be read
  int32_t parked = 0;           // of these those without one, which wait for none until they are read
  int32_t readers = 0;          // alive, on either side
  int32_t cache_entries = 0;
  uint64_t cache_bytes = 0;  // of saved prefixes
  Histogram queue_wait;
  Histogram ttft;
  Histogram itl;

  void count(Finish finish) {
    switch (finish) {
      case Finish::kStop:
        ++tasks_stop;
        break;
      case Finish::kLength:
        ++tasks_length;
        break;
      case Finish::kCancelled:
        ++tasks_cancelled;
        break;
      case Finish::kError:
        ++tasks_error;
        break;
      case Finish::kUnfinished:
        break;
    }
  }
};

}  // namespace corosrv
