// Guesses next tokens with a second, smaller model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "loop/drafter.h"
#include "loop/scheduler.h"
#include "loop/step_budget.h"
#include "model/backend.h"

namespace corosrv {

// Returns why a model cannot guess for another one: their tokens differ, or it cannot be cut at any position. `names`:
// of both, for the message.
Status check_draft(const Backend& model, const Backend& draft, const std::string& names);

// Keeps what the draft model holds of each slot in step with the slot's sequence, as far as that pays, and asks it what
// comes next. It guesses greedily, all sequences of a step together, and stops where it is unsure. Nothing that it
// holds reaches an answer: whatever becomes of a slot, the next look removes what differs and computes what lacks. Used
// by the decode thread alone.
class DraftModel {
 public:
  using Now = std::function<Clock::time_point()>;

  // `backend` outlives this; `slots` and `rows`: of it; `vocabulary`: of the model that it guesses for;
  // `least_probability`: of a guess, as the draft model sees it.
  DraftModel(Backend& backend, int32_t slots, int32_t rows, const Vocabulary& vocabulary, double least_probability,
             Now now);

  // Adds guesses to those sequences of a plan for which they pay more than what these know themselves. At most `most`,
  // and none where prompts are read. `prices`: of the model that computes the plan. A failure ends it for good.
  void add_drafts(Plan& plan, const RowPrices& prices, int32_t most);

  // Of the guesses that add_drafts() made for this slot, the first so many came true.
  void learn(int32_t slot, size_t n_right);

  // The slot rests: gives its memory back.
  void give_back(int32_t slot);
  // Forgets everything that decisions depend on.
  void reset();

  // Seconds that the last add_drafts() took.
  double spent_s() const { return spent_s_; }
  // Why it guesses no more; empty while it does.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Slot {
    std::vector<Token> held;  // that the draft model has computed
    uint64_t owner = 0;       // of what it holds: others begin anew
    int64_t arrival = -1;     // of its sequence
    size_t n_asked = 0;       // guesses that it was asked for in this step, one more where it stopped unsure
    std::vector<bool> sure;   // of the guesses, whether it was sure of each
  };
  struct Asked {
    Plan::Item* item;
    Slot* slot;
    int32_t most;          // guesses
    int32_t n_rows = 0;    // of the next batch
    bool is_open = false;  // the next batch brings it a guess
    double chance = 1;     // of all its guesses together
    std::vector<Token> guesses = {};
  };
  // Rows that are left of a batch, and of those for texts of which much lacks.
  struct Room {
    int32_t rows;
    int32_t piece;
  };
  class Bargain;

  void greet(const Sequence& sequence);
  std::vector<Asked> whom_to_ask(Plan& plan, const Bargain& bargain, int32_t most);
  int32_t rows_of_a_piece(const Bargain& bargain) const;
  void catch_up(Asked& asked, size_t n_asked, const Bargain& bargain, Room& room);
  void cut(const Sequence& sequence, Slot& slot);
  void guess(std::vector<Asked>& asked, Bargain& bargain, int32_t most);
  bool compute(const std::vector<Asked>& asked);
  bool run(int32_t n_read);
  void extend(Asked& asked, const float* logits, Bargain& bargain);
  void measure(const Sequence& sequence);
  double row_of_prompt_s() const;
  Slot& slot_of(const Sequence& sequence) { return slots_[static_cast<size_t>(sequence.slot())]; }

  Backend& backend_;
  const Vocabulary& vocabulary_;
  const int32_t rows_;
  const size_t n_tokens_;  // that both vocabularies have
  const double least_probability_;
  const Now now_;
  std::vector<Slot> slots_;
  std::vector<Row> batch_;
  StepBudget budget_;
  HitRate hits_;  // of all that it is asked
  HitRate sure_hits_;
  HitRate unsure_hits_;         // of its guesses
  int32_t n_with_guesses_ = 0;  // steps
  int32_t n_unmeasured_ = 0;    // steps since the price of a guess was last seen
  double spent_s_ = 0;
  std::string trouble_;
};

}  // namespace corosrv
