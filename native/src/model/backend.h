// What a model must offer to the decode loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/types.h"

namespace corosrv {

// The tokens of a model. All methods but show() are const and may be called from any thread.
class Vocabulary {
 public:
  virtual ~Vocabulary() = default;
  virtual int32_t size() const = 0;
  bool has(Token token) const { return token >= 0 && token < size(); }
  // The bytes that a token adds to the text; control tokens add none, unless they are shown. May end
  // inside a UTF-8 character.
  virtual std::string_view text(Token token) const = 0;
  // The same with control tokens spelled out.
  virtual std::string_view special_text(Token token) const = 0;
  virtual bool is_end_of_generation(Token token) const = 0;
  virtual bool is_control(Token token) const = 0;
  virtual const std::vector<Token>& end_tokens() const = 0;
  // Tokens of `text`; `add_special` puts the beginning-of-sequence token in front where the model wants it.
  virtual std::vector<Token> tokenize(std::string_view text, bool add_special, bool parse_special) const = 0;
  // Makes these control tokens add their text from now on, but for those that end an answer. No other call is under
  // way.
  virtual void show(const std::vector<Token>&) {}
};

struct ModelInfo {
  int32_t context = 0;        // tokens of a sequence, at most
  int32_t shared_cells = 0;   // tokens that all slots hold together, at most; 0: each has room for a whole context
  int32_t context_train = 0;  // tokens
  int32_t window = 0;         // tokens that some layers see, at most; 0: all
  int32_t n_embd = 0;
  int32_t row_width = 0;  // numbers of an embedding row in a prompt; 0: it takes none
  bool is_mrope = false;  // sees each token and row at a RopePosition
  int32_t vocab_type = 0;
  bool can_shift = false;  // Backend::shift() works, and was asked for
  // A sequence longer than the window goes on from a copy, which has no more than the next token sees.
  bool resumes_in_window = false;
  bool add_bos = false;
  Token bos = -1;
  Token eos = -1;
  uint64_t n_params = 0;
  uint64_t size = 0;            // bytes
  bool can_generate = true;     // text, and not vectors alone
  bool computes_aside = false;  // a device does: decode() returns before its rows are computed
  bool reads_whole = false;     // every token sees all others: a sequence has to be computed in one piece
  int32_t n_adapters = 0;       // that were loaded with it
  int32_t n_vector = 0;         // numbers in a token's vector; 0: there are none
  Pooling pooling = Pooling::kMean;
  bool own_kernels = false;   // ours compute a part of the model
  bool picks = false;         // a device picks the largest logits: Backend::picked() has them
  uint64_t packed_bytes = 0;  // of weights that our own kernels hold a copy of
  std::string ftype;
  std::string description;
  std::string chat_template;
  // How the two texts of a pair stand together.
  bool add_eos = false;
  bool add_sep = false;
  Token sep = -1;
  std::string rerank_template;
  std::string sampling;  // the file's keys of how to draw: lines of KEY=VALUE
  // What marks the parts of a text with a gap.
  Token fim_prefix = -1;
  Token fim_suffix = -1;
  Token fim_middle = -1;
  Token fim_repository = -1;
  Token fim_file = -1;
};

// One row of a step: a token, or an embedding row in place of one, of a slot.
struct Row {
  Token token;       // negative for an embedding row
  int32_t position;  // how many tokens and rows the slot holds before it
  int32_t slot;
  bool wants_logits;
  bool is_scored = false;            // for the likelihood of the prompt's next token: nothing is drawn from them
  const float* embedding = nullptr;  // info().row_width numbers; null: the token's
  bool is_non_causal = false;        // sees all rows of its batch, which are of one slot
  RopePosition rope = text_position(position);
};

// Rows of one step that are scored, at most: each takes room for the logits of a whole vocabulary.
constexpr int32_t kMostScoredRows = 32;

// Guesses of one step, at most: they take the same room, for no step has both.
constexpr int32_t kMostDraftedRows = kMostScoredRows;

// What the KV cache holds of one sequence, copied out of a slot.
struct Snapshot {
  std::unique_ptr<uint8_t[]> bytes;
  size_t size = 0;
};

// The largest logits of a row, in any order; which ones of equal logits are among them is by chance.
struct PickedLogits {
  const Token* tokens = nullptr;
  const float* logits = nullptr;
  size_t size = 0;  // 0: none were picked
};

// Used by the decode thread alone, vocabulary() and info() excepted.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Vocabulary& vocabulary() const = 0;
  virtual const ModelInfo& info() const = 0;
  // See Vocabulary::show. Any thread reads the vocabulary without a lock: called before the first task alone.
  virtual void show(const std::vector<Token>&) {}
  // From now on rows are computed with these adapters.
  virtual void use(const Adapters&) {}
  // From now on so many threads compute.
  virtual void use_threads(int32_t) {}
  // Computes the rows, all of which have an embedding or none, and are causal or none; those of one slot are contiguous
  // and in order of position. After a failure the caller forgets what may have been computed of them.
  // StatusCode::kNoRoom: it could be done with fewer slots in use.
  virtual Status decode(const std::vector<Row>& rows) = 0;
  // Waits until the rows of the last decode() are computed.
  virtual void wait() {}
  // Logits after row `row` of the last decode(), vocabulary().size() of them, the caller's to change until the
  // next one. Where a device picks the largest, also for threads that draw side by side.
  virtual float* logits(size_t row) = 0;
  // The same row's largest logits, where a device has picked them: logits() fetches the others from there.
  virtual PickedLogits picked(size_t) { return {}; }
  // Computes the rows as decode() does, and has the model's vector of each one. A model that reads_whole gets whole
  // sequences. Those without vectors need neither of these.
  virtual Status embed(const std::vector<Row>&) {
    return Status(StatusCode::kUnsupported, "this model makes no vectors");
  }
  // The vector of row `row` of the last embed(), until the next one: info().n_vector numbers. With Pooling::kRank one
  // number: the score of its sequence up to what embed() was given.
  virtual const float* vector(size_t) { return nullptr; }
  // Drops tokens of `slot`, which holds text alone, and moves those behind them forward: they keep what they have seen
  // of the dropped ones. info().can_shift; followed by decode() before anything else.
  virtual void shift(int32_t, Cut) {}
  // Drops what `slot` holds behind `kept`.
  virtual void forget(int32_t slot, Extent kept) = 0;
  // Gives the memory of `slot`, which holds nothing, back to the system; whatever it holds next takes it again.
  virtual void give_back(int32_t) {}
  // Drops all that `slot` holds, and overwrites it: numbers that are none would spoil what the slot holds next.
  virtual void wipe(int32_t slot) { forget(slot, {}); }

  // Whether what a slot holds can be copied, and cut: recurrent memories cannot.
  virtual bool has_snapshots() const = 0;
  // Whether `slot`, cut to `kept`, has all that the next token sees: what lies before the window may be gone.
  virtual bool can_resume(int32_t, Extent) const { return true; }
  // A copy of all that `slot` holds; null bytes where it cannot be had, or would be larger than `limit_bytes`.
  virtual Snapshot save(int32_t slot, size_t limit_bytes) = 0;
  // Makes `slot`, which holds nothing, hold the beginning of a snapshot of any slot. Upon failure, also where it could
  // not resume from there, it still holds nothing.
  virtual bool load(int32_t slot, const Snapshot& snapshot, Extent wanted) = 0;
};

// What a token is drawn from: all logits behind a row, or the largest ones, to which the others are fetched if need be.
struct RowLogits {
  RowLogits(float* row_of_all) : all(row_of_all) {}
  RowLogits(Backend& from, size_t row_of_batch)
      : picked(from.picked(row_of_batch)),
        all(picked.size > 0 ? nullptr : from.logits(row_of_batch)),
        backend(&from),
        row(row_of_batch) {}

  // One thread at a time for each row. Waits for the device.
  float* fetch() { return all != nullptr ? all : all = backend->logits(row); }

  PickedLogits picked;
  float* all = nullptr;  // the drawer's to change; null: not fetched
  Backend* backend = nullptr;
  size_t row = 0;  // of its last decode()
};

}  // namespace corosrv
