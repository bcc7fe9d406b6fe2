// Plain values that the parts of the decode loop hand to each other.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/token_list.h"

namespace corosrv {

class DryBreakers;
class EmbeddedRows;
class Grammar;

using Token = int32_t;
using Clock = std::chrono::steady_clock;

// Where a model with M-RoPE sees a token or a row: in time, and in the height and width of an image. Other models look
// at `t` alone.
struct RopePosition {
  int32_t t = 0;
  int32_t y = 0;
  int32_t x = 0;
  int32_t z = 0;
};

// The position of text, as libllama sees it.
inline RopePosition text_position(int32_t position) { return {position, position, position, 0}; }

// With how much a sequence begins: the number of its first tokens and rows, and the position `t` of the last of them.
struct Extent {
  int32_t n_tokens = 0;
  int32_t last_position = -1;
};

inline double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// What stands between the model's logits and the draw.
enum class SamplerKind {
  kPenalties,  // repeat, presence, frequency
  kDry,
  kTopNSigma,
  kTopK,
  kTypicalP,
  kTopP,
  kMinP,
  kXtc,
  kTemperature,
  kAdaptiveP,  // draws, and so comes last wherever it is named
};

// How many tokens of thoughts an answer may have, and what ends them then.
struct ThoughtLimit {
  int32_t max_tokens = 0;
  std::string opening;        // the text that begins them; empty: the prompt has begun them
  std::string closing;        // and ends them
  std::vector<Token> ending;  // drawn when the tokens are spent; none: no limit
};

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
  int32_t n_probs = -1;              // likeliest tokens that are told of with each that is drawn; -1: none is told of
  bool post_sampling_probs = false;  // of the distribution that was drawn from, not of the model's own
  std::vector<std::string> grammar_triggers;  // the grammar begins with the first of them in the text; none: at once
  float top_n_sigma = -1.0f;                  // -1 is off
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  float dynatemp_range = 0.0f;
  float dynatemp_exponent = 1.0f;
  float dry_multiplier = 0.0f;
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_penalty_last_n = 64;                  // -1 is the whole context
  std::shared_ptr<const DryBreakers> dry_breakers;  // null: none
  int32_t mirostat = 0;
  float mirostat_tau = 5.0f;
  float mirostat_eta = 0.1f;
  float adaptive_target = -1.0f;  // -1 is off
  float adaptive_decay = 0.9f;
  int32_t min_keep = 0;
  ThoughtLimit thoughts;
  std::vector<SamplerKind> samplers = {SamplerKind::kPenalties, SamplerKind::kDry,      SamplerKind::kTopNSigma,
                                       SamplerKind::kTopK,      SamplerKind::kTypicalP, SamplerKind::kTopP,
                                       SamplerKind::kMinP,      SamplerKind::kXtc,      SamplerKind::kTemperature,
                                       SamplerKind::kAdaptiveP};
};

// What a sampler has to remember beside the tokens: where its random numbers are, and two floats of its chooser. The
// bytes of both.
using SamplerState = std::array<uint8_t, 16>;

// What an earlier engine did of a task, or what was generated of another task that this one branches from.
struct Earlier {
  std::vector<Token> tokens;          // that were drawn
  size_t n_sent = 0;                  // bytes of their text that were given out
  std::optional<SamplerState> state;  // as of the last of the tokens; none: this sampler's first draw comes next
};

// How much of each LoRA adapter a sequence gets, by the adapter's number; empty: nothing of any.
using Adapters = std::vector<float>;

// Prefixes are shared only within the same scope: among sequences of one owner that compute with the same adapters.
// How soon an answer begins tells what a cache holds, and so what others have asked.
struct SharingScope {
  uint64_t owner = 0;
  Adapters adapters;

  bool operator==(const SharingScope& other) const { return owner == other.owner && adapters == other.adapters; }
  bool operator!=(const SharingScope& other) const { return !(*this == other); }
};

// What becomes of the vectors that a model makes of a sequence's tokens. kRank: its own head makes a score of them.
enum class Pooling { kNone, kMean, kCls, kLast, kRank };

// What a task wants of its tokens' vectors.
struct VectorWish {
  Pooling pooling = Pooling::kMean;
  int32_t size = 0;       // numbers of one
  int32_t normalize = 2;  // -1: as it is; 0: the largest number is 32760; p: the p-norm is 1. None with kNone
};

// What becomes of a full context: the tokens behind the first `n_keep` go, and the answer goes on.
struct ContextShift {
  int32_t n_keep = 0;     // at most 4 less than the context holds
  int32_t n_discard = 0;  // 0: half of those behind
};

// Tokens of a slot that go, and those that stay before them.
struct Cut {
  int32_t n_kept = 0;
  int32_t n_discarded = 0;
};

// One generation, or one prompt to be embedded, as it was submitted.
struct Task {
  int32_t index = 0;  // among the tasks of its reader
  std::vector<Token> prompt;
  std::shared_ptr<const EmbeddedRows> rows;  // that stand where the prompt's ids are negative; null: none
  int32_t max_tokens = -1;                   // -1: until the context is full
  std::optional<ContextShift> shift;         // none: a full context ends the answer
  Sampling sampling;
  std::vector<std::string> stops;
  std::vector<Token> prediction;      // the text that the answer is expected to have much of; empty: nobody knows
  bool share_prefix = true;           // begin from what was computed before, and leave behind what is computed now
  std::optional<VectorWish> vectors;  // wants these, and no text
  double max_ms = 0;                  // of generating, from the first token on; 0: no limit
  bool scores_prompt = false;         // tells how likely each of the prompt's tokens was; computes all of them
  SharingScope sharing_scope;
  bool tells_progress = false;                            // of reading the prompt, in chunks without text
  int64_t id = 0;                                         // the caller's name for it
  int32_t slot = -1;                                      // where it has to run; -1: anywhere
  int32_t priority = 5;                                   // 1 is first, 9 last; among those of its owner
  int32_t tier = 0;                                       // of its owner: 0 goes before 1, and so on
  double weight = 1;                                      // of its owner: how large a share of the machine it has
  Clock::time_point deadline = Clock::time_point::max();  // when its answer is of no use any more
  Earlier earlier;                                        // nothing: it begins
  bool tells_state = false;                               // in each chunk, what goes into a later Earlier
  std::string recorded;                                   // what it is made of again; empty where nobody records
};

enum class Finish { kUnfinished, kStop, kLength, kCancelled, kError };

// What a reader yields. Chunks of one task that nobody has read yet are merged into one.
struct Chunk {
  int32_t index = 0;
  int32_t n_tokens = 0;
  Finish finish = Finish::kUnfinished;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t drafted_tokens = 0;   // guesses that were computed for the task
  int32_t accepted_tokens = 0;  // of these, those that came true
  int32_t read_tokens = -1;     // of the prompt; -1: not told
  double prompt_ms = 0;
  double decode_ms = 0;
  double compute_ms = 0;  // its part of the time of each step
  std::string text;
  std::vector<float> vector;
  std::string stopping_word;
  const char* code = "";  // of an error, for programs
  int32_t slot = -1;
  int32_t n_dropped = 0;                   // tokens that shifts of the context have dropped
  std::unique_ptr<TokenList> tokens;       // that the text is made of; null: none are told of
  std::unique_ptr<TokenList> prompt_info;  // tokens of the prompt; null: none are told of
  std::vector<Token> ids;                  // drawn since the chunk before, where the task tells its state
  SamplerState state{};                    // behind the last of them

  // What may not pile up unread.
  size_t bytes() const {
    return text.size() + vector.size() * sizeof(float) + (tokens ? tokens->bytes() : 0) +
           (prompt_info ? prompt_info->bytes() : 0) + ids.size() * sizeof(Token);
  }
};

}  // namespace corosrv
