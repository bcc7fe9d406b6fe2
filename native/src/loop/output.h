// What a sequence has for its reader: text, likelihoods and numbers, as chunks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "handover/reader.h"
#include "handover/signals.h"
#include "loop/progress.h"
#include "loop/sequence_request.h"
#include "model/token_list.h"
#include "model/types.h"
#include "text/answer_text.h"

namespace corosrv {

// Keeps what no chunk holds yet. Used by the decode thread alone; the sequence sees to it that finish() comes once.
class Output {
 public:
  // All but `stops` outlive this, which keeps a share of the reader.
  Output(std::shared_ptr<Reader> reader, Signals& signals, const SequenceRequest& request, const Progress& progress,
         const std::vector<std::string>& stops)
      : reader_(std::move(reader)), signals_(signals), request_(request), progress_(progress), text_(stops) {}

  Reader& reader() const { return *reader_; }
  bool is_full() const { return signals_.is_full(*reader_); }
  bool is_cancelled() const { return signals_.is_cancelled(*reader_); }
  bool ends_thoughts() const { return signals_.ends_thoughts(*reader_); }

  // Of all that was sent: text, an error's words, a vector.
  uint64_t hash() const { return hash_; }

  // Takes up the answer of an earlier engine, whose tokens add these bytes to the text: sends what is certain of it,
  // but for its first `n_sent` bytes.
  void resume(std::string_view bytes, size_t n_sent);

  // A token was drawn that adds these bytes to the text. Sends what text is certain; the rest may begin a stop string.
  // Text that ends with a stop string is left to the terminal chunk: no other has ids that nothing can follow. `state`:
  // the sampler's behind it.
  void add(Token token, std::string_view bytes, TokenList likelihoods, const SamplerState& state);
  // A stop string has ended the text.
  bool has_stopped() const { return text_.has_stopped(); }
  // A line ends in the text that is certain.
  bool has_new_line() const { return has_new_line_; }

  // How likely the prompt's next token was; a later chunk has it.
  void add_score(const TokenList& score);
  int32_t n_scored() const { return n_scored_; }
  bool has_scores() const { return !scores_.is_empty(); }

  // Sends a chunk of this text, which may be none.
  void send(std::string text);
  // Sends the terminal chunk. `message`: of an error, in place of the text.
  void finish(Finish finish, const std::string& message, const char* code, std::vector<float> vector, int32_t slot);

 private:
  Chunk make_chunk();
  void push(Chunk chunk);

  const std::shared_ptr<Reader> reader_;
  Signals& signals_;
  const SequenceRequest& request_;
  const Progress& progress_;
  AnswerText text_;
  std::string last_text_;   // before a stop string, in no chunk yet
  std::vector<Token> ids_;  // where the task tells its state: in no chunk yet
  SamplerState state_{};    // behind the last of them
  TokenList scores_;        // of the prompt's tokens, in no chunk yet
  int32_t n_scored_ = 0;    // of the prompt, at any time
  int32_t n_unsent_ = 0;    // generated, and in no chunk yet
  bool has_new_line_ = false;
  uint64_t hash_ = kHashSeed;
};

}  // namespace corosrv
