#include "loop/draft_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <utility>

namespace corosrv {

namespace {

// Optimistic, so that a model whose guesses pay at all is tried.
constexpr double kChance = 0.8;
constexpr double kUnsureChance = 0.4;
// The draft model is sure of a guess that it gives this probability.
constexpr double kSure = 0.5;
// Of so many steps with guesses one goes without: where all have about as many rows, nobody sees what one costs.
constexpr int32_t kPlainEvery = 16;

// Sizes of vocabularies may differ by so many tokens: files are padded differently.
constexpr int32_t kMostPadding = 128;

// Tokens that are computed with the next guess; more are read in pieces before it.
constexpr int32_t kAtOnce = 16;
// A piece takes at most this part of a step of the model that is guessed for.
constexpr double kPieceShare = 0.5;
// What a token of a prompt costs, as a part of one that is guessed, before any was read.
constexpr double kPromptShare = 0.25;
// Tokens that an answer is expected to go on for, beside as many as it has.
constexpr int32_t kExpected = 8;
// Steps after which the price of a guess is looked at again where nobody asks for one: it may have been somebody
// else's work on the processor.
constexpr int32_t kOldPrice = 256;
// Of the steps that this model computes the budget knows prices alone: none is cut to a target.
constexpr double kNoTarget = 1;

constexpr int32_t kAnyNumber = std::numeric_limits<int32_t>::max();

// Logits this far below the best one weigh nothing.
constexpr float kNothing = 16;

// Returns the probability of the best of these logits, or one that is less than `least` where it is less; 0 where they
// are no numbers.
double probability_of(float best, const float* logits, size_t n_tokens, double least) {
  double sum = 0;  // of all, as parts of the best one's
  for (const float* logit = logits; logit != logits + n_tokens && sum * least <= 1; ++logit) {
    if (*logit > best - kNothing) sum += std::exp(*logit - best);
  }
  return sum >= 1 ? 1 / sum : 0;
}

}  // namespace

Status check_draft(const Backend& model, const Backend& draft, const std::string& names) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalid, "the draft model cannot guess for the model (" + names + "): " + why);
  };
  if (!model.info().can_generate) return refuse("the model makes vectors and no text");
  if (!model.has_snapshots()) return refuse("guesses cannot be taken back in a recurrent model");
  if (!draft.info().can_generate) return refuse("it makes vectors and no text");
  if (!draft.has_snapshots()) return refuse("what it remembers cannot be cut, as that of a recurrent model");
  const Vocabulary& ours = model.vocabulary();
  const Vocabulary& its = draft.vocabulary();
  if (model.info().vocab_type != draft.info().vocab_type) return refuse("its vocabulary is of another type");
  if (std::abs(ours.size() - its.size()) > kMostPadding) {
    return refuse("it has " + std::to_string(its.size()) + " tokens in place of " + std::to_string(ours.size()));
  }
  for (Token token = 0; token < std::min(ours.size(), its.size()); ++token) {
    if (ours.special_text(token) != its.special_text(token)) {
      return refuse("its tokens are others, the first of them number " + std::to_string(token));
    }
  }
  return Status::ok();
}

// What guesses bring in this step, and what they cost.
class DraftModel::Bargain {
 public:
  Bargain(const Plan& plan, const RowPrices& prices, const RowPrices& draft_prices, double chance)
      : plan_(plan), prices_(prices), draft_prices_(draft_prices), chance_(chance) {}

  double chance() const { return chance_; }
  int32_t n_drafted() const { return n_drafted_; }
  double n_true() const { return n_true_; }

  // Whether a sequence that could have guesses with this chance for nothing is better served by the draft model.
  bool beats(double chance) const {
    const auto n = static_cast<size_t>(plan_.n_decode);
    return (chance_ - chance) * taken_s() > asked_s(n) / static_cast<double>(n) * n_tokens();
  }
  // Whether it pays to ask each of so many sequences for one more guess, of which so many are expected to come true.
  bool pays(size_t n_sequences, double n_true) const {
    const double rows_s = static_cast<double>(n_sequences) * prices_.row_s();
    return RowPrices::pays(n_true, asked_s(n_sequences) + rows_s, taken_s(), n_tokens());
  }
  // Whether a guess that was made, and comes true with this chance, is worth its row.
  bool pays(double chance) const { return RowPrices::pays(chance, prices_.row_s(), taken_s(), n_tokens()); }
  // What a guess saves for one of so many sequences.
  double saved_s(size_t n_sequences) const {
    const double cost_s = asked_s(n_sequences) / static_cast<double>(n_sequences) + prices_.row_s();
    return std::max(chance_ * taken_s() / n_tokens() - cost_s, 0.0);
  }
  // So many sequences were asked.
  void note(size_t n_asked) { drafting_s_ += asked_s(n_asked); }
  // One has a guess more, with this chance.
  void add(double chance) {
    ++n_drafted_;
    n_true_ += chance;
  }
  double taken_s() const { return prices_.step_s(plan_.n_decode + n_drafted_) + drafting_s_; }

 private:
  double asked_s(size_t n_sequences) const { return draft_prices_.step_s(static_cast<int32_t>(n_sequences)); }
  double n_tokens() const { return plan_.n_decode + n_true_; }

  const Plan& plan_;
  const RowPrices& prices_;
  const RowPrices& draft_prices_;
  const double chance_;
  int32_t n_drafted_ = 0;
  double n_true_ = 0;
  double drafting_s_ = 0;
};

DraftModel::DraftModel(Backend& backend, int32_t slots, int32_t rows, const Vocabulary& vocabulary,
                       double least_probability, Now now)
    : backend_(backend),
      vocabulary_(vocabulary),
      rows_(rows),
      n_tokens_(static_cast<size_t>(std::min(vocabulary.size(), backend.vocabulary().size()))),
      least_probability_(least_probability),
      now_(std::move(now)),
      slots_(static_cast<size_t>(slots)),
      budget_(kNoTarget, rows),
      hits_(kChance),
      sure_hits_(kChance),
      unsure_hits_(kUnsureChance) {}

void DraftModel::add_drafts(Plan& plan, const RowPrices& prices, int32_t most) {
  spent_s_ = 0;
  for (Slot& slot : slots_) {
    slot.n_asked = 0;
    slot.sure.clear();
  }
  if (!trouble_.empty() || most < 1 || plan.n_prompt > 0 || plan.n_decode == 0 || !prices.is_known()) return;
  for (const Plan::Item& item : plan.items) greet(*item.sequence);
  if (!budget_.prices().is_known() || ++n_unmeasured_ > kOldPrice) measure(*plan.items.front().sequence);
  if (!trouble_.empty()) return;
  Bargain bargain(plan, prices, budget_.prices(), hits_.chance());
  std::vector<Asked> asked = whom_to_ask(plan, bargain, most);
  if (asked.empty() || !bargain.pays(asked.size(), static_cast<double>(asked.size()) * bargain.chance())) {
    return hits_.pass_over();
  }
  if (++n_with_guesses_ % kPlainEvery == 0) return;

  Room room{rows_, rows_of_a_piece(bargain)};
  for (Asked& one : asked) catch_up(one, asked.size(), bargain, room);
  guess(asked, bargain, most);
  if (!trouble_.empty()) return;
  for (Asked& one : asked) {
    if (one.guesses.empty()) {
      learn(one.item->sequence->slot(), 0);
      continue;
    }
    one.item->n_tokens += static_cast<int32_t>(one.guesses.size());
    one.item->sequence->draft(std::move(one.guesses));
  }
  plan.n_drafted += bargain.n_drafted();
  plan.n_true += bargain.n_true();
}

// Another text may be easier to guess, or harder: a few guesses for it tell.
void DraftModel::greet(const Sequence& sequence) {
  if (std::exchange(slot_of(sequence).arrival, sequence.arrival()) == sequence.arrival()) return;
  for (HitRate* hits : {&hits_, &sure_hits_, &unsure_hits_}) hits->begin_anew();
}

// In order of their slots, as libllama computes them best.
std::vector<DraftModel::Asked> DraftModel::whom_to_ask(Plan& plan, const Bargain& bargain, int32_t most) {
  std::vector<Asked> asked;
  for (Plan::Item& item : plan.items) {
    Sequence& sequence = *item.sequence;
    const auto n_known = static_cast<int32_t>(sequence.tokens().size());
    const int32_t n_guesses = std::min(sequence.n_guessable(most), backend_.info().context - n_known);
    if (n_guesses < 1) continue;
    const Prospect own = sequence.prospect(most);
    if (own.n_tokens > 0 && !bargain.beats(own.chance)) continue;
    asked.push_back({&item, &slot_of(sequence), n_guesses});
  }
  if (asked.size() > static_cast<size_t>(most)) asked.resize(static_cast<size_t>(most));
  std::sort(asked.begin(), asked.end(), [](const Asked& a, const Asked& b) { return a.slot < b.slot; });
  return asked;
}

double DraftModel::row_of_prompt_s() const {
  return budget_.prompt_row_s() > 0 ? budget_.prompt_row_s() : kPromptShare * budget_.prices().step_s(1);
}

int32_t DraftModel::rows_of_a_piece(const Bargain& bargain) const {
  const double n_rows = kPieceShare * bargain.taken_s() / row_of_prompt_s();
  return static_cast<int32_t>(std::clamp(n_rows, double{kAtOnce}, double(rows_)));
}

// Removes what the slot holds of another text, and plans what is to be computed of this one: nothing where much lacks
// and the answer has not gone on for long enough to be worth it, or where a token lacks that this model does not have.
void DraftModel::catch_up(Asked& asked, size_t n_asked, const Bargain& bargain, Room& room) {
  const Sequence& sequence = *asked.item->sequence;
  const std::vector<Token>& tokens = sequence.tokens();
  cut(sequence, *asked.slot);
  const auto n_lacking = static_cast<int32_t>(tokens.size() - asked.slot->held.size());
  const bool has_all = std::all_of(tokens.end() - n_lacking, tokens.end(),
                                   [this](Token token) { return static_cast<size_t>(token) < n_tokens_; });
  if (!has_all) return;
  if (n_lacking > kAtOnce) {
    const int32_t n_left = std::min(sequence.n_generated() + kExpected, sequence.n_guessable(kAnyNumber) + 1);
    if (n_lacking * row_of_prompt_s() > bargain.saved_s(n_asked) * n_left) return;
    asked.n_rows = std::min({n_lacking, room.piece, room.rows});
    room.piece -= asked.n_rows;
  } else if (n_lacking <= room.rows) {
    asked.n_rows = n_lacking;
  }
  room.rows -= asked.n_rows;
  asked.is_open = asked.n_rows == n_lacking;
}

// The last token is computed in any case: its logits are what is asked for.
void DraftModel::cut(const Sequence& sequence, Slot& slot) {
  const std::vector<Token>& tokens = sequence.tokens();
  const bool is_own = std::exchange(slot.owner, sequence.owner()) == sequence.owner();
  const size_t n_most = is_own ? std::min(slot.held.size(), tokens.size() - 1) : 0;
  const auto n_same =
      std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n_most), slot.held.begin()).first -
      tokens.begin();
  if (static_cast<size_t>(n_same) == slot.held.size()) return;
  slot.held.resize(static_cast<size_t>(n_same));
  const auto n_held = static_cast<int32_t>(n_same);
  backend_.forget(sequence.slot(), {n_held, n_held - 1});
}

// One batch for each depth, as long as one more guess of each that goes on pays.
void DraftModel::guess(std::vector<Asked>& asked, Bargain& bargain, int32_t most) {
  for (;;) {
    if (!compute(asked)) return;
    bargain.note(static_cast<size_t>(std::count_if(asked.begin(), asked.end(), [](auto& one) { return one.is_open; })));
    size_t row = 0;
    for (Asked& one : asked) {
      row += static_cast<size_t>(std::exchange(one.n_rows, 0));
      if (one.is_open) extend(one, backend_.logits(row - 1), bargain);
    }
    int32_t n_open = 0;
    double n_true = 0;
    for (Asked& one : asked) {
      one.n_rows = one.is_open ? 1 : 0;
      n_open += one.n_rows;
      n_true += one.n_rows * one.chance * bargain.chance();
    }
    const bool has_room = bargain.n_drafted() + n_open <= most;
    if (n_open == 0 || !has_room || !bargain.pays(static_cast<size_t>(n_open), n_true)) return;
  }
}

// Computes the next rows of each: of its known tokens or, behind these, its last guess.
bool DraftModel::compute(const std::vector<Asked>& asked) {
  batch_.clear();
  int32_t n_read = 0;
  for (const Asked& one : asked) {
    const Sequence& sequence = *one.item->sequence;
    std::vector<Token>& held = one.slot->held;
    for (int32_t i = 0; i < one.n_rows; ++i) {
      const bool is_known = held.size() < sequence.tokens().size();
      const Token token = is_known ? sequence.tokens()[held.size()] : one.guesses.back();
      const bool is_last = one.is_open && i + 1 == one.n_rows;
      batch_.push_back({token, static_cast<int32_t>(held.size()), sequence.slot(), is_last});
      held.push_back(token);
    }
    if (one.n_rows > kAtOnce || !one.is_open) n_read += one.n_rows;
  }
  return batch_.empty() || run(n_read);
}

// Only what was computed may stay in held.
bool DraftModel::run(int32_t n_read) {
  const auto begin = now_();
  Status status = Status::ok();
  try {
    status = backend_.decode(batch_);
  } catch (const std::exception& error) {
    status = Status(StatusCode::kInternal, error.what());
  }
  const double taken_s = seconds(now_() - begin);
  spent_s_ += taken_s;
  if (!status.is_ok()) {
    trouble_ = status.message();
    for (size_t slot = 0; slot < slots_.size(); ++slot) give_back(static_cast<int32_t>(slot));
    return false;
  }
  const auto n_rows = static_cast<int32_t>(batch_.size());
  budget_.observe(n_rows - n_read, n_read, taken_s);
  if (n_read == 0) n_unmeasured_ = 0;
  return true;
}

// Adds a guess, if it is worth its row. One that the answer ends with saves nothing.
void DraftModel::extend(Asked& asked, const float* logits, Bargain& bargain) {
  ++asked.slot->n_asked;
  asked.is_open = false;
  const float* const best = std::max_element(logits, logits + n_tokens_);
  const auto guess = static_cast<Token>(best - logits);
  const double least = least_probability_ > 0 ? least_probability_ : kSure;  // below, it does not matter how much
  const double probability = probability_of(*best, logits, n_tokens_, least);
  if (probability <= 0 || probability < least_probability_ || vocabulary_.is_end_of_generation(guess)) return;
  const bool is_sure = probability >= kSure;
  HitRate& hits = is_sure ? sure_hits_ : unsure_hits_;
  asked.chance *= hits.chance();
  if (!bargain.pays(asked.chance)) return hits.pass_over();
  bargain.add(asked.chance);
  asked.guesses.push_back(guess);
  asked.slot->sure.push_back(is_sure);
  asked.is_open = static_cast<int32_t>(asked.guesses.size()) < asked.most;
}

// Computes one token behind what the sequence's slot holds, for the price of it alone.
void DraftModel::measure(const Sequence& sequence) {
  Slot& slot = slot_of(sequence);
  if (static_cast<int32_t>(slot.held.size()) >= backend_.info().context) slot.held.clear();
  const auto n_held = static_cast<int32_t>(slot.held.size());
  const Extent held{n_held, n_held - 1};
  backend_.forget(sequence.slot(), held);
  batch_ = {{0, n_held, sequence.slot(), true}};
  if (run(0)) backend_.forget(sequence.slot(), held);
}

void DraftModel::learn(int32_t slot, size_t n_right) {
  Slot& asked = slots_[static_cast<size_t>(slot)];
  hits_.learn(std::exchange(asked.n_asked, 0), n_right);
  for (size_t i = 0; i < std::min(asked.sure.size(), n_right + 1); ++i) {
    (asked.sure[i] ? sure_hits_ : unsure_hits_).learn(i < n_right);
  }
  asked.sure.clear();
}

void DraftModel::give_back(int32_t slot) {
  slots_[static_cast<size_t>(slot)] = {};
  backend_.forget(slot, {});
  backend_.give_back(slot);
}

void DraftModel::reset() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) give_back(static_cast<int32_t>(slot));
  budget_ = StepBudget(kNoTarget, rows_);
  hits_ = sure_hits_ = HitRate(kChance);
  unsure_hits_ = HitRate(kUnsureChance);
  n_unmeasured_ = n_with_guesses_ = 0;
}

}  // namespace corosrv
