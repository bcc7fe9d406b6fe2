#include "loop/decode_loop.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "base/pages.h"
#include "loop/batches.h"
#include "loop/drafts.h"

namespace corosrv {

namespace {

struct Draw {
  Sequence* sequence;
  size_t first_row;  // of those with logits
  int32_t n_known;   // tokens that its slot holds,
  int32_t n_held;    // and those with the guesses
};

// A token of a prompt, and how likely it was.
struct Scoring {
  Sequence* sequence;
  int32_t position;  // of the token before it
  const float* logits;
  TokenList likelihoods;
  std::string failure;

  void score() {
    try {
      likelihoods = sequence->score(position, logits);
    } catch (const std::exception& error) {
      failure = std::string("the prompt could not be scored: ") + error.what();
    }
  }
};

// Calls `work`, which throws nothing, with each item. OpenMP, because libllama computes with it: the same threads,
// which still spin from the step's last matrix, and none besides.
template <typename Item, typename Work>
void side_by_side(std::vector<Item>& items, [[maybe_unused]] int32_t threads, Work work) {
  const auto n_items = static_cast<int32_t>(items.size());
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (n_items > 1)
#endif
  for (int32_t i = 0; i < n_items; ++i) work(items[static_cast<size_t>(i)]);
}

// Returns the shorter of two waits, of which a negative one lasts for ever.
Clock::duration shorter(Clock::duration a, Clock::duration b) {
  if (a < Clock::duration::zero() || b < Clock::duration::zero()) return std::max(a, b);
  return std::min(a, b);
}

// Minus infinity is what a model says of tokens that it never wants.
bool are_numbers(const float* logits, size_t n_logits) {
  return std::all_of(logits, logits + n_logits,
                     [](float logit) { return logit < std::numeric_limits<float>::infinity(); });
}

}  // namespace

DecodeLoop::DecodeLoop(const Limits& limits, Inbox& inbox, Backend& backend, Tape* tape, Backend* draft)
    : limits_(limits),
      inbox_(inbox),
      backend_(backend),
      draft_(draft),
      tape_(tape),
      computes_aside_(backend.info().computes_aside),
      signals_(tape),
      scheduler_(limits.slots, limits.rows, limits.reads_whole, limits.shared_cells, backend.info().window),
      cache_(backend.has_snapshots() ? limits.cache_bytes : 0, backend.info().window, backend.info().resumes_in_window),
      memory_(backend, cache_, limits.slots, limits.shared_cells > 0),
      sharing_(backend, cache_, memory_),
      board_(limits.slots),
      budget_(limits.step_ms / 1000, limits.rows),
      thread_choice_(limits.threads),
      time_limits_(limits.queue_s, limits.stall_s),
      idle_slots_(limits.slots, limits.idle_s) {
  stats_.slots = limits.slots;
  stats_.threads = limits.threads;
  if (draft_ != nullptr) {
    draft_model_.emplace(*draft_, limits.slots, limits.rows, backend.vocabulary(), limits.draft_p_min,
                         [this] { return now(); });
  }
  publish();
}

void DecodeLoop::run() {
  if (tape_ != nullptr) begin_anew();
  while (pass()) {
  }
}

// False after the last one.
bool DecodeLoop::pass() {
  const auto looked = now();
  const Clock::duration patience = shorter(time_limits_.patience(scheduler_, looked), idle_slots_.patience(looked));
  const bool has_work = scheduler_.has_work();
  if (!has_work) side_process_.release();
  Inbox::Mail mail = tape_ == nullptr ? inbox_.take(has_work, patience) : tape_->take(inbox_, has_work, patience);
  const bool is_closing = mail.is_closing;
  const auto begin = Clock::now();
  side_process_.suspend();
  take(std::move(mail));
  end_late();
  step();
  settle();
  answer_slot_requests();
  if (is_closing) {
    tell();
    publish();
    return false;
  }
  give_back_idle();
  if (tape_ != nullptr && scheduler_.is_empty() && slot_requests_.empty() && tape_->begins_anew()) begin_anew();
  publish();
  if (scheduler_.has_work()) {
    side_process_.run_after(Clock::now() - begin, static_cast<int32_t>(scheduler_.n_running()),
                            scheduler_.n_decoding() > 0, stats_.threads);
  }
  return true;
}

// Forgets all that decisions depend on, but for the memory of slots, which is still to be given back.
void DecodeLoop::begin_anew() {
  cache_.clear();
  memory_.clear();
  scheduler_ = Scheduler(limits_.slots, limits_.rows, limits_.reads_whole, limits_.shared_cells);
  budget_ = StepBudget(limits_.step_ms / 1000, limits_.rows);
  time_limits_ = TimeLimits(limits_.queue_s, limits_.stall_s);
  idle_slots_ = IdleSlots(limits_.slots, limits_.idle_s);
  idle_slots_.use_all(now());
  if (draft_model_) draft_model_->reset();
  waits_to_restore_ = is_out_of_room_ = false;
  uncharged_s_ = 0;
}

void DecodeLoop::take(Inbox::Mail mail) {
  for (Submission& submission : mail.submissions) add(std::move(submission));
  std::move(mail.slot_requests.begin(), mail.slot_requests.end(), std::back_inserter(slot_requests_));
  if (mail.is_draining) {
    end_all(mail.reason, kShuttingDown);
    settle();
  } else if (mail.has_cancellations) {
    scheduler_.for_each([](Sequence& sequence) {
      if (sequence.is_reader_cancelled()) sequence.finish(Finish::kCancelled);
    });
    settle();
  }
}

// What cannot be made, for want of memory, ends; the loop goes on.
void DecodeLoop::add(Submission submission) {
  const std::shared_ptr<Reader> reader = submission.reader;
  const int32_t index = submission.task.index;
  const uint64_t owner = submission.task.sharing_scope.owner;
  time_limits_.add(submission.task.deadline);
  try {
    scheduler_.add(std::make_unique<Sequence>(std::move(submission), backend_.vocabulary(), backend_.info().context,
                                              signals_, stats_, limits_.drafted_rows > 0 && backend_.has_snapshots()));
  } catch (const std::exception& error) {
    signals_.push(reader, error_chunk(index, std::string("the request could not be taken up: ") + error.what()));
    stats_.count(Finish::kError);
    inbox_.ended({owner});
  }
}

void DecodeLoop::end_late() {
  if (time_limits_.end_expired(scheduler_, now())) settle();
  const auto looked = now();
  if (!time_limits_.is_look_due(looked)) return;
  note_paused();  // whoever was read during a long step is not overdue
  time_limits_.end_overdue(scheduler_, looked);
  settle();
}

void DecodeLoop::end_all(const std::string& reason, const char* code) {
  scheduler_.for_each([&](Sequence& sequence) { sequence.finish(Finish::kError, reason, code); });
  for (const auto& request : std::exchange(slot_requests_, {})) request->answer(Status(StatusCode::kClosed, reason));
  signal();
  side_process_.release();
}

// Frees what has ended, then lets the readers hear of the step: whoever comes back at once finds room. Nobody has to
// wait for what is copied of it. Where a device computes, it gets the next step to do before they hear.
void DecodeLoop::settle() {
  const Scheduler::Swept swept = scheduler_.sweep();
  if (tape_ != nullptr) tape_ends(swept);
  for (const auto& sequence : swept.from_slots) ended_.push_back(sequence->owner());
  for (const auto& sequence : swept.others) ended_.push_back(sequence->owner());
  for (const auto& sequence : swept.from_slots) board_.show_end(*sequence);
  if (!computes_aside_ || !scheduler_.has_work()) tell();
  for (const auto& sequence : swept.from_slots) memory_.note(*sequence);
}

// Lets the readers hear of what was pushed to them.
void DecodeLoop::tell() {
  if (!ended_.empty()) {
    publish();  // whoever hears of an end finds it counted, and shown
    inbox_.ended(ended_);
    ended_.clear();
  }
  signal();
}

// Between the end of a slot's sequence and the next one's begin, so that each finds its slot idle some time. What is to
// be restored into cells that slots share waits for them as a prompt does: nobody starts meanwhile.
void DecodeLoop::answer_slot_requests() {
  waits_to_restore_ = false;
  const auto is_over = [this](const std::shared_ptr<SlotRequest>& request) {
    if (signals_.seen(request->is_abandoned())) return true;
    if (scheduler_.is_in_use(request->slot())) return false;
    const auto n_cells = static_cast<int32_t>(request->content().tokens.size());
    lend_cells(n_cells);
    if (scheduler_.lacks(n_cells)) {
      waits_to_restore_ = true;
      return false;
    }
    memory_.run(*request);
    idle_slots_.use(request->slot(), now());
    return true;
  };
  slot_requests_.erase(std::remove_if(slot_requests_.begin(), slot_requests_.end(), is_over), slot_requests_.end());
}

void DecodeLoop::tape_ends(const Scheduler::Swept& swept) {
  for (const auto& sequence : swept.from_slots) tape_->end(sequence->taped_end());
  for (const auto& sequence : swept.others) tape_->end(sequence->taped_end());
}

void DecodeLoop::signal() { stats_.eventfd_writes += signals_.send(); }

void DecodeLoop::step() {
  const auto begin = charged_ = now();
  note_paused();
  free_cells();
  lend_slots();
  if (!waits_to_restore_) {
    displace(begin);
    scheduler_.admit(begin, [this](const Sequence& sequence, const std::vector<int32_t>& free_slots) {
      return memory_.continued_by(sequence, free_slots);
    });
  }
  if (limits_.shared_cells == 0) sharing_.close_gaps(scheduler_);
  sharing_.begin(scheduler_);
  idle_slots_.look(scheduler_, begin);
  if (!computes_aside_) signal();  // whoever wants to hear of it hears that its prompt is about to be read

  Plan plan = this->plan();
  if (plan.items.empty()) return tell();
  draft(plan);
  shift_full(plan);
  for (const auto& item : plan.items) item.sequence->end_thoughts_if_asked();
  if (tape_ != nullptr) tape_plan(plan);
  choose_threads();
  for (const auto& batch : batches_of(plan, limits_.shared_cells > 0)) {
    compute(batch);
    wipe_poisoned(batch);
  }
  if (std::exchange(is_out_of_room_, false)) make_room();

  const auto end = now();
  const double step_s = seconds(end - begin);
  const double drafting_s = draft_model_ ? draft_model_->spent_s() : 0;
  const double computing_s = step_s - drafting_s;
  uncharged_s_ += seconds(end - charged_);
  thread_choice_.observe(computing_s, budget_.expected_s(plan.n_decode, plan.n_prompt, plan.n_drafted));
  budget_.observe(plan.n_decode, plan.n_prompt, computing_s, plan.n_drafted);
  ++stats_.steps;
  stats_.slot_steps += scheduler_.n_running();
  stats_.step_s += step_s;
}

Plan DecodeLoop::plan() {
  const int32_t n_first = scheduler_.n_decoding_first();
  int32_t prompt_tokens = budget_.prompt_tokens(scheduler_.n_decoding(), scheduler_.n_prefilling());
  if (n_first == 0) return scheduler_.plan(prompt_tokens);
  if (scheduler_.reads_for_last_class()) prompt_tokens = std::min(prompt_tokens, budget_.prompt_tokens_beside(n_first));
  return scheduler_.plan(prompt_tokens, budget_.rows_beside(n_first));
}

// What is recorded is computed with the same number of threads all the time: on that depends how libllama's own
// attention rounds.
void DecodeLoop::choose_threads() {
  if (tape_ != nullptr) return;
  const int32_t threads = thread_choice_.threads();
  if (threads == std::exchange(stats_.threads, threads)) return;
  backend_.use_threads(threads);
  if (draft_ != nullptr) draft_->use_threads(threads);
}

void DecodeLoop::tape_plan(const Plan& plan) {
  uint64_t hash = kHashSeed;
  for (const auto& [sequence, n_tokens] : plan.items) {
    hash = mixed(hash, static_cast<uint64_t>(sequence->slot()) << 32 | static_cast<uint32_t>(n_tokens));
  }
  tape_->plan({plan.n_decode, plan.n_prompt, plan.n_drafted, hash});
}

void DecodeLoop::tape_batch() {
  uint64_t hash = kHashSeed;
  for (const Row& row : rows_) {
    const uint64_t flags = (row.wants_logits ? 1u : 0u) | (row.is_scored ? 2u : 0u) | (row.is_non_causal ? 4u : 0u);
    hash = mixed(hash, static_cast<uint64_t>(row.position) << 32 | static_cast<uint32_t>(row.token));
    hash = mixed(hash, static_cast<uint64_t>(row.slot) << 3 | flags);
  }
  tape_->batch(hash);
}

// As many guesses as the step has rows for, and the cells that slots share.
void DecodeLoop::draft(Plan& plan) {
  int32_t most = std::min({limits_.drafted_rows, kMostDraftedRows, limits_.rows - plan.n_decode});
  if (scheduler_.lacks(most)) most = 0;
  if (draft_model_) draft_model_->add_drafts(plan, budget_.prices(), most);
  add_drafts(plan, budget_.prices(), most);
}

// Only of sequences that this step computes: libllama rotates the keys at the beginning of its next decode, and until
// then the slot is not to be copied. What the slot holds by now is what its tokens say, and of use to others; nobody
// waits for it to compute more, for no prompt is as long.
void DecodeLoop::shift_full(const Plan& plan) {
  for (const auto& item : plan.items) {
    Sequence& sequence = *item.sequence;
    if (!sequence.is_full()) continue;
    sharing_.keep(sequence);
    backend_.shift(sequence.slot(), sequence.cut_of_full());
    sequence.shift();
    idle_slots_.use_all(now());  // for their keys are rotated as well, by nothing
  }
}

void DecodeLoop::note_paused() {
  const auto looked = now();
  scheduler_.for_each_started([looked](Sequence& sequence) { sequence.set_paused(sequence.is_reader_full(), looked); });
  scheduler_.unpark();
}

// A reader that nobody reads holds no slot that others wait for.
void DecodeLoop::lend_slots() {
  while (Sequence* holder = scheduler_.idle_holder()) preempt(*holder);
}

// Until what is known of each that runs has room in the cells that all slots share.
void DecodeLoop::free_cells() {
  while (scheduler_.lacks(0)) preempt(*scheduler_.first_to_give_way());
}

// A reader that nobody reads holds no cells that are wanted either.
void DecodeLoop::lend_cells(int32_t n_cells) {
  while (scheduler_.lacks(n_cells) && scheduler_.paused() != nullptr) preempt(*scheduler_.paused());
}

// Somebody whose turn it is takes the slot of one that goes on later, behind what it has computed by now: one at most,
// for the next one's turn is known when this step is charged for.
void DecodeLoop::displace(Clock::time_point now) {
  Sequence* const sequence = scheduler_.to_displace(now);
  if (sequence == nullptr || !sharing_.keep(*sequence)) return;
  const int32_t slot = sequence->slot();
  scheduler_.displace(*sequence, now);
  memory_.release(slot);
  backend_.forget(slot, {});
}

void DecodeLoop::preempt(Sequence& sequence) {
  sharing_.keep(sequence);  // so that it need not compute everything again
  const int32_t slot = sequence.slot();
  scheduler_.preempt(sequence);
  memory_.release(slot);
  backend_.forget(slot, {});
}

// Decodes and draws. When a batch fails, each half is tried by itself, down to the sequence that is to blame: only
// that one ends (I10).
void DecodeLoop::compute(const std::vector<Plan::Item>& items) {
  rows_.clear();
  for (const auto& [sequence, n_tokens] : items) {
    const int32_t first = sequence->n_computed();
    for (int32_t i = 0; i < n_tokens; ++i) {
      const int32_t position = first + i;
      const float* const embedding = sequence->embedding(position);
      const bool is_checked = embedding != nullptr && i + 1 == n_tokens;  // by check_rows()
      rows_.push_back({sequence->token(position), position, sequence->slot(),
                       is_checked || sequence->wants_logits(position), sequence->is_scored(position), embedding,
                       sequence->reads_non_causal(), sequence->rope(position)});
    }
  }

  if (tape_ != nullptr) tape_batch();
  const Status status = run(items);
  if (computes_aside_) {
    tell();
    backend_.wait();
  }
  charge(items);
  if (status.is_ok()) {
    advance(items);
  } else {
    fail(items, status);
  }
}

// Before what was computed is sent, so that a last chunk can tell all that its task has cost; what the steps before did
// after theirs is charged with it.
void DecodeLoop::charge(const std::vector<Plan::Item>& items) {
  const auto looked = now();
  const double batch_s = seconds(looked - charged_) + std::exchange(uncharged_s_, 0);
  scheduler_.charge(items, batch_s, budget_.decode_row_s(), budget_.prompt_row_s());
  charged_ = looked;
}

Status DecodeLoop::run(const std::vector<Plan::Item>& items) {
  const Sequence& first = *items.front().sequence;
  try {
    backend_.use(first.sharing_scope().adapters);
    return first.wants_vectors() ? backend_.embed(rows_) : backend_.decode(rows_);
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, std::string("the model failed: ") + error.what());
  }
}

// The rows were computed: those that have all their logits draw, side by side, and what they drew goes out in order.
// Guesses that did not come true leave the slot before anything else is computed, or kept, of it.
void DecodeLoop::advance(const std::vector<Plan::Item>& items) {
  score(items);
  check_rows(items);
  std::vector<Draw> draws;
  std::vector<RowLogits> logits;
  size_t row = 0;
  for (const auto& [sequence, n_tokens] : items) {
    row += static_cast<size_t>(n_tokens);
    const int32_t n_drafted = sequence->n_drafted();
    const int32_t n_known = n_tokens - n_drafted;
    const bool has_logits = n_known == sequence->n_pending();
    if (sequence->wants_vectors()) collect(*sequence, row - static_cast<size_t>(n_tokens), n_tokens);
    sequence->computed(n_known);
    if (!has_logits || sequence->wants_vectors()) continue;
    draws.push_back({sequence, logits.size(), sequence->n_computed(), sequence->n_computed() + n_drafted});
    for (size_t i = row - 1 - static_cast<size_t>(n_drafted); i < row; ++i) logits.emplace_back(backend_, i);
  }
  // Sequences share nothing while they choose.
  side_by_side(draws, stats_.threads, [&](const Draw& draw) { draw.sequence->choose(&logits[draw.first_row]); });
  const auto drawn = now();
  for (const auto& [sequence, first_row, n_known, n_held] : draws) {
    sequence->take(drawn);
    const int32_t n_true = sequence->n_computed();
    if (draft_model_) draft_model_->learn(sequence->slot(), static_cast<size_t>(n_true - n_known));
    if (n_true < n_held) backend_.forget(sequence->slot(), sequence->extent(n_true));
  }
}

// Finite rows may still lead to numbers that are none. They would stay in the KV cache, where nobody looks until a
// token is drawn: so the logits behind each sequence's last row tell of them at once.
void DecodeLoop::check_rows(const std::vector<Plan::Item>& items) {
  if (!items.front().sequence->reads_rows()) return;
  const auto n_logits = static_cast<size_t>(backend_.vocabulary().size());
  size_t row = 0;
  for (const auto& [sequence, n_tokens] : items) {
    row += static_cast<size_t>(n_tokens);
    if (are_numbers(backend_.logits(row - 1), n_logits)) continue;
    sequence->poison("the model cannot compute these embedding rows: what it makes of them are not numbers",
                     kRowsNotFinite);
  }
}

// Before anything else is computed: kernels may read what stays in the slot.
void DecodeLoop::wipe_poisoned(const std::vector<Plan::Item>& items) {
  for (const auto& item : items) {
    if (item.sequence->is_poisoned()) backend_.wipe(item.sequence->slot());
  }
}

void DecodeLoop::collect(Sequence& sequence, size_t first_row, int32_t n_tokens) {
  for (size_t row = first_row; row < first_row + static_cast<size_t>(n_tokens); ++row) {
    sequence.collect(backend_.vector(row));
  }
}

// Prompts that are to be scored: each of their rows says how likely the next token was.
void DecodeLoop::score(const std::vector<Plan::Item>& items) {
  std::vector<Scoring> scorings;
  size_t row = 0;
  for (const auto& [sequence, n_tokens] : items) {
    for (int32_t i = 0; i < n_tokens; ++i, ++row) {
      const int32_t position = sequence->n_computed() + i;
      if (sequence->is_scored(position)) scorings.push_back({sequence, position, backend_.logits(row), {}, {}});
    }
  }
  side_by_side(scorings, stats_.threads, [](Scoring& scoring) { scoring.score(); });
  for (const Scoring& scoring : scorings) {
    if (scoring.failure.empty()) {
      scoring.sequence->add_score(scoring.likelihoods);
    } else {
      scoring.sequence->finish(Finish::kError, scoring.failure);
    }
  }
}

// Part of a failed batch may have been computed; whoever is tried again begins where it began. Where the memory cannot
// be cut there, inside an image, the image is read again.
void DecodeLoop::forget_pending(Sequence& sequence) {
  if (backend_.has_snapshots()) sequence.rewind(sequence.cut(sequence.n_computed()));
  backend_.forget(sequence.slot(), sequence.extent(sequence.n_computed()));
}

// Guesses are no reason for anybody's end: whatever fails with them is tried again without.
void DecodeLoop::fail(std::vector<Plan::Item> items, const Status& status) {
  for (const auto& item : items) forget_pending(*item.sequence);
  if (drop_drafts(items)) return compute(items);
  const bool is_alone = items.size() == 1;
  if (status.code() == StatusCode::kNoRoom && !(is_alone && scheduler_.n_running() == 1)) {
    is_out_of_room_ = true;
  } else if (is_alone) {
    items[0].sequence->finish(Finish::kError, status.message());
  } else {
    const auto half = items.begin() + static_cast<std::ptrdiff_t>(items.size() / 2);
    compute({items.begin(), half});
    compute({half, items.end()});
  }
}

// Returns whether there were any.
bool DecodeLoop::drop_drafts(std::vector<Plan::Item>& items) {
  bool had_drafts = false;
  for (auto& [sequence, n_tokens] : items) {
    had_drafts = had_drafts || sequence->n_drafted() > 0;
    n_tokens -= sequence->n_drafted();
    sequence->drop_draft();
  }
  return had_drafts;
}

// The KV cache is full: the sequence that started last goes on when another has ended.
void DecodeLoop::make_room() {
  if (scheduler_.n_running() < 2) return;
  Sequence* const last = scheduler_.first_to_give_way();
  if (last->state() == Sequence::State::kDone) return;  // it has ended in this step, and gives way by that
  preempt(*last);
  scheduler_.hold_admission();
}

// A slot in each pass, so that nobody who comes meanwhile waits for long. With the last one the prefix cache is cut
// down to what the weights take: a small model then rests small, and a large one hardly ever loses a prefix. What
// malloc has kept of all of it goes, too.
void DecodeLoop::give_back_idle() {
  const auto looked = now();
  idle_slots_.look(scheduler_, looked);
  const int32_t slot = idle_slots_.take_due(looked);
  if (slot < 0) return;
  memory_.release(slot);
  backend_.give_back(slot);
  if (draft_model_) draft_model_->give_back(slot);
  if (!idle_slots_.is_at_rest()) return;
  cache_.shrink(backend_.info().size);
  give_back_freed();
}

void DecodeLoop::publish() {
  stats_.paused = 0;
  scheduler_.for_each_started([this](const Sequence& sequence) { stats_.paused += sequence.is_paused() ? 1 : 0; });
  stats_.parked = static_cast<int32_t>(scheduler_.n_parked());
  stats_.running = static_cast<int32_t>(scheduler_.n_running());
  stats_.cache_entries = static_cast<int32_t>(cache_.size());
  stats_.cache_bytes = cache_.bytes();
  board_.show(scheduler_);
  MutexLock lock(mutex_);
  published_ = stats_;
  if (draft_model_ && draft_trouble_.empty()) draft_trouble_ = draft_model_->trouble();
}

std::string DecodeLoop::draft_trouble() {
  MutexLock lock(mutex_);
  return draft_trouble_;
}

LoopStats DecodeLoop::snapshot() {
  LoopStats stats;
  {
    MutexLock lock(mutex_);
    stats = published_;
  }
  // Two readings, of which the second may have moved on.
  stats.waiting = std::max(0, static_cast<int32_t>(inbox_.in_flight()) - stats.running - stats.parked);
  stats.tasks_refused = inbox_.refused();
  stats.readers_polled = inbox_.readers_polled();
  stats.readers = Reader::alive();
  return stats;
}

}  // namespace corosrv
