// Plain values that the parts of the decode loop hand to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace corosrv {

class Grammar;

using Token = int32_t;
using Clock = std::chrono::steady_clock;

inline double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// How one sequence's tokens are drawn; ranges are checked at the C API.
struct Sampling {
  float temperature = 0.8f;  // 0 is greedy
  int32_t top_k = 40;        // 0 keeps all
  float top_p = 0.95f;
  float min_p = 0.05f;
  float typical_p = 1.0f;
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t repeat_last_n = 64;  // -1 is the whole context
  uint32_t seed = 0;
  bool ignore_eos = false;
  std::vector<std::pair<Token, float>> biases;
  std::shared_ptr<const Grammar> grammar;  // at its beginning; each sequence follows a copy. Null: any text
};

// What becomes of the vectors that a model makes of a sequence's tokens. kRank: its own head makes a score of them.
enum class Pooling { kNone, kMean, kCls, kLast, kRank };

// What a task wants of its tokens' vectors.
struct VectorWish {
  Pooling pooling = Pooling::kMean;
  int32_t size = 0;       // numbers of one
  int32_t normalize = 2;  // -1: as it is; 0: the largest number is 32760; p: the p-norm is 1. None with kNone
};

// One generation, or one prompt to be embedded, as it was submitted.
struct Task {
  int32_t index = 0;  // among the tasks of its reader
  std::vector<Token> prompt;
  int32_t max_tokens = -1;  // -1: until the context is full
  Sampling sampling;
  std::vector<std::string> stops;
  bool share_prefix = true;           // begin from what was computed before, and leave behind what is computed now
  std::optional<VectorWish> vectors;  // wants these, and no text
};

enum class Finish { kUnfinished, kStop, kLength, kCancelled, kError };

// What a reader yields. Chunks of one task that nobody has read yet are merged into one.
struct Chunk {
  int32_t index = 0;
  int32_t n_tokens = 0;
  Finish finish = Finish::kUnfinished;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  double prompt_ms = 0;
  double decode_ms = 0;
  std::string text;
  std::vector<float> vector;
};

}  // namespace corosrv
