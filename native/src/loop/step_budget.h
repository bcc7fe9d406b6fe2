// How many prompt tokens a step may carry without making it too long for the streams that run.
#pragma once

#include <algorithm>
#include <cstdint>

#include "loop/row_prices.h"

namespace corosrv {

// Learns from the steps that were: what a decoded row costs, and what a prompt token costs on top.
class StepBudget {
 public:
  // `target_s`: how long a step should take while sequences decode and few prompts wait. `rows`: of one step, at most.
  StepBudget(double target_s, int32_t rows) : target_s_(target_s), rows_(rows) {}

  // Prompt tokens for a step while `n_decode` sequences decode; the scheduler fits them into what room there is. A
  // whole step's when nobody streams; otherwise at least kLeast, so that a prompt advances however slow the machine is.
  // `n_prompts`: sequences that read their prompts. Where they are many and streams are few, a step may take up to
  // kPatience times as long: larger pieces are read faster, and more streams begin sooner.
  int32_t prompt_tokens(int32_t n_decode, int32_t n_prompts = 0) const {
    if (n_decode == 0) return rows_;
    if (prompt_row_s_ <= 0) return std::min(rows_, kFirst);
    const double decode_s = decoding_s(std::min(n_decode, rows_));
    // Where decoding alone takes most of the target or more, prompts may take twice as long as it, or more where
    // many wait: starved of rows, they would leave slots without a stream, and every step would be paid for by fewer.
    const double patience = std::min(1.0 + double(n_prompts) / n_decode, kPatience);
    const double left_s = std::max(target_s_ * patience - decode_s, kSlowShare * patience * decode_s);
    return std::min(rows_, static_cast<int32_t>(std::clamp(left_s / prompt_row_s_, double{kLeast}, double(rows_))));
  }

  // What nobody waits for may have of a step in which so many sequences decode: rows that are decoded, and tokens of
  // prompts. Each may make it longer by a share of kBeside; some always may, so that none starves.
  int32_t rows_beside(int32_t n_decode) const {
    return std::max(1, static_cast<int32_t>(kBeside * prices_.step_s(n_decode) / prices_.row_s()));
  }
  int32_t prompt_tokens_beside(int32_t n_decode) const {
    if (prompt_row_s_ <= 0) return kLeast;
    return std::max(kLeast, static_cast<int32_t>(kBeside * prices_.step_s(n_decode) / prompt_row_s_));
  }

  // Seconds that a step with these rows should take; 0: not known yet. `n_drafted`: rows of guesses.
  double expected_s(int32_t n_decode, int32_t n_prompt, int32_t n_drafted = 0) const {
    if ((n_decode > 0 && decode_row_s_ <= 0) || (n_prompt > 0 && prompt_row_s_ <= 0)) return 0;
    return (n_decode > 0 ? prices_.step_s(n_decode + n_drafted) : 0) + n_prompt * prompt_row_s_;
  }

  // What a step with these rows took.
  void observe(int32_t n_decode, int32_t n_prompt, double step_s, int32_t n_drafted = 0) {
    if (n_prompt == 0 && n_decode > 0) prices_.observe(n_decode + n_drafted, step_s);
    if (n_prompt == 0 && n_decode > 0 && n_drafted == 0) learn(decode_row_s_, step_s / n_decode);
    // Short pieces tell more about the step's fixed cost than about a prompt token.
    if (n_prompt >= kLeast) learn(prompt_row_s_, std::max(0.0, step_s - decoding_s(n_decode)) / n_prompt);
  }

  // Seconds of a row that is decoded, its part of the step included, and of one of a prompt on top; 0: not known yet.
  double decode_row_s() const { return decode_row_s_; }
  double prompt_row_s() const { return prompt_row_s_; }
  // What a row costs that is decoded.
  const RowPrices& prices() const { return prices_; }

 private:
  // What the rows of a step take that are decoded; nothing before any was.
  double decoding_s(int32_t n_decode) const {
    return n_decode > 0 && prices_.is_known() ? prices_.step_s(n_decode) : 0;
  }

  static constexpr int32_t kLeast = 16;
  static constexpr int32_t kFirst = 64;  // before anything is known
  static constexpr double kPatience = 4;
  static constexpr double kSlowShare = 2;
  static constexpr double kBeside = 0.15;
  static constexpr double kWeight = 0.2;

  static void learn(double& known, double seen) { known = known <= 0 ? seen : known + kWeight * (seen - known); }

  double target_s_;
  int32_t rows_;
  RowPrices prices_;
  double decode_row_s_ = 0;
  double prompt_row_s_ = 0;
};

}  // namespace corosrv
