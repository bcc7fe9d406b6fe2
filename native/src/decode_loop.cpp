#include "decode_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace corosrv {

DecodeLoop::DecodeLoop(const Limits& limits, Inbox& inbox, Backend& backend)
    : limits_(limits),
      inbox_(inbox),
      backend_(backend),
      scheduler_(limits.slots, limits.rows),
      budget_(limits.step_ms / 1000, limits.rows) {
  stats_.slots = limits.slots;
  publish();
}

void DecodeLoop::run() {
  for (;;) {
    Inbox::Mail mail = inbox_.take(scheduler_.has_work());
    const bool is_closing = mail.is_closing;
    take(std::move(mail));
    step();
    settle();
    publish();
    if (is_closing) return;
  }
}

void DecodeLoop::take(Inbox::Mail mail) {
  for (Submission& submission : mail.submissions) {
    scheduler_.add(
        std::make_unique<Sequence>(std::move(submission), backend_.vocabulary(), backend_.info().context, stats_));
  }
  if (mail.is_draining) {
    end_all(mail.reason);
    settle();
  } else if (mail.has_cancellations) {
    scheduler_.for_each([](Sequence& sequence) {
      if (sequence.reader().is_cancelled()) sequence.finish(Finish::kCancelled);
    });
    settle();
  }
}

void DecodeLoop::end_all(const std::string& reason) {
  scheduler_.for_each([&](Sequence& sequence) { sequence.finish(Finish::kError, reason); });
}

// Frees what has ended, so that its slots are there for the next admission.
void DecodeLoop::settle() {
  size_t n_unstarted = 0;
  const std::vector<int32_t> freed = scheduler_.sweep(n_unstarted);
  for (const int32_t slot : freed) backend_.forget(slot, 0);
  if (const size_t n_ended = freed.size() + n_unstarted) inbox_.ended(n_ended);
}

void DecodeLoop::step() {
  const auto begin = Clock::now();
  scheduler_.admit(begin);
  stats_.paused = 0;
  scheduler_.for_each_running([this](Sequence& sequence) {
    sequence.set_paused(sequence.reader().is_full());
    stats_.paused += sequence.is_paused() ? 1 : 0;
  });

  const Plan plan = scheduler_.plan(budget_.prompt_tokens(scheduler_.n_decoding(), scheduler_.n_prefilling()));
  if (plan.items.empty()) return;
  compute(plan.items);

  const double step_s = seconds(Clock::now() - begin);
  budget_.observe(plan.n_decode, plan.n_prompt, step_s);
  ++stats_.steps;
  stats_.step_s += step_s;
}

// Decodes and draws. When a batch fails, each half is tried by itself, down to the sequence that is to blame: only
// that one ends (I10).
void DecodeLoop::compute(const std::vector<Plan::Item>& items) {
  rows_.clear();
  for (const auto& [sequence, n_tokens] : items) {
    const int32_t first = sequence->n_computed();
    for (int32_t i = 0; i < n_tokens; ++i) {
      const bool wants_logits = i + 1 == sequence->n_pending();
      rows_.push_back({sequence->token(first + i), first + i, sequence->slot(), wants_logits});
    }
  }

  Status status = Status::ok();
  try {
    status = backend_.decode(rows_);
  } catch (const std::exception& error) {
    status = Status(COROSRV_INTERNAL, std::string("the model failed: ") + error.what());
  }
  if (status.is_ok()) {
    const auto now = Clock::now();
    size_t row = 0;
    for (const auto& [sequence, n_tokens] : items) {
      row += static_cast<size_t>(n_tokens);
      const bool has_logits = n_tokens == sequence->n_pending();
      sequence->computed(n_tokens);
      if (has_logits) sequence->draw(backend_.logits(row - 1), now);
    }
    return;
  }
  // Part of a failed batch may have been computed; whoever is tried again begins where it began.
  for (const auto& item : items) backend_.forget(item.sequence->slot(), item.sequence->n_computed());
  if (items.size() == 1) {
    items[0].sequence->finish(Finish::kError, status.message());
  } else {
    const auto half = items.begin() + static_cast<std::ptrdiff_t>(items.size() / 2);
    compute({items.begin(), half});
    compute({half, items.end()});
  }
}

void DecodeLoop::publish() {
  stats_.running = static_cast<int32_t>(scheduler_.n_running());
  MutexLock lock(mutex_);
  published_ = stats_;
}

corosrv_stats DecodeLoop::snapshot() {
  corosrv_stats stats;
  {
    MutexLock lock(mutex_);
    stats = published_;
  }
  // Two readings, of which the second may have moved on.
  stats.waiting = std::max(0, static_cast<int32_t>(inbox_.in_flight()) - stats.running);
  stats.tasks_refused = inbox_.refused();
  stats.readers = Reader::alive();
  return stats;
}

}  // namespace corosrv
