// Tasks for the scripted model.
#pragma once

#include <utility>
#include <vector>

#include "loop/sequence.h"
#include "model/types.h"
#include "scripted_backend.h"

namespace corosrv {

inline Sampling greedy() {
  Sampling sampling;
  sampling.temperature = 0;
  return sampling;
}

// A task named `name`, with a prompt of `n_prompt` tokens.
inline Task make_task(Token name, size_t n_prompt = 1, int32_t max_tokens = -1, Sampling sampling = greedy()) {
  Task task;
  task.prompt.assign(n_prompt, 'p');
  task.prompt[0] = name;
  task.max_tokens = max_tokens;
  task.sampling = std::move(sampling);
  return task;
}

// Lets a sequence that guesses nothing draw its next token.
inline void choose_next(Sequence& sequence, std::vector<float>& logits) {
  const RowLogits row(logits.data());
  sequence.choose(&row);
}

// A prompt of these tokens that is to become a vector, as it is.
inline Task make_embedding(std::vector<Token> prompt, Pooling pooling = Pooling::kMean) {
  Task task;
  task.prompt = std::move(prompt);
  task.vectors = VectorWish{pooling, ScriptedBackend::kVectorSize, -1};
  return task;
}

}  // namespace corosrv
