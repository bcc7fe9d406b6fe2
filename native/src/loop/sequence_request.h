// What a sequence was asked for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "handover/inbox.h"
#include "model/types.h"

namespace corosrv {

// Constant from the submission on. Prompt, sampling and stop strings are not in it: the parts that work on them keep
// them.
struct SequenceRequest {
  explicit SequenceRequest(const Submission& submission)
      : index(submission.task.index),
        max_tokens(submission.task.max_tokens),
        shift(submission.task.shift),
        wants_vectors(submission.task.vectors.has_value()),
        // Its scores came before the first token.
        scores_prompt(submission.task.scores_prompt && submission.task.earlier.tokens.empty()),
        // Vectors or scores of all tokens need all of them computed.
        shares_prefix(submission.task.share_prefix && !wants_vectors && !scores_prompt),
        tells_progress(submission.task.tells_progress),
        tells_state(submission.task.tells_state),
        n_top(static_cast<size_t>(std::max(submission.task.sampling.n_probs, 0))),
        max_s(submission.task.max_ms / 1000),
        sharing_scope(submission.task.sharing_scope),
        id(submission.task.id),
        slot(submission.task.slot),
        priority(submission.task.priority),
        tier(submission.task.tier),
        weight(submission.task.weight),
        deadline(submission.task.deadline),
        submitted(submission.submitted) {}

  const int32_t index;                      // among the tasks of its reader
  const int32_t max_tokens;                 // -1: until the context is full
  const std::optional<ContextShift> shift;  // none: a full context ends it
  const bool wants_vectors;                 // and no text
  const bool scores_prompt;
  const bool shares_prefix;
  const bool tells_progress;
  const bool tells_state;
  const size_t n_top;  // likeliest tokens that are listed with each of the prompt's
  const double max_s;  // of generating; 0 is no limit
  const SharingScope sharing_scope;
  const int64_t id;
  const int32_t slot;  // where it has to run, or -1
  const int32_t priority;
  const int32_t tier;
  const double weight;
  const Clock::time_point deadline;
  const Clock::time_point submitted;
};

}  // namespace corosrv
