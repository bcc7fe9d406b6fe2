// What the rows of a step cost.
#pragma once

#include <algorithm>
#include <cstdint>

namespace corosrv {

// A step of decoding costs something, and each of its rows costs something on top: a line through the steps that were,
// of which the last ones count most. While all steps have about as many rows, a row costs what it costs elsewhere.
class RowPrices {
 public:
  // A step with so many rows, and nothing else, took so long.
  void observe(int32_t n_rows, double step_s) {
    // Somebody else's work on the processor is not the rows' price.
    if (weight_ > 0) step_s = std::min(step_s, kMostTimes * this->step_s(n_rows));
    weight_ = kMemory * weight_ + 1;
    const double share = 1 / weight_;
    const double rows_off = n_rows - mean_rows_;
    const double step_off = step_s - mean_s_;
    mean_rows_ += share * rows_off;
    mean_s_ += share * step_off;
    variance_ = (1 - share) * (variance_ + share * rows_off * rows_off);
    covariance_ = (1 - share) * (covariance_ + share * rows_off * step_off);
  }

  // A step of so many rows.
  double step_s(int32_t n_rows) const { return mean_s_ + (n_rows - mean_rows_) * row_s(); }

  // One more row.
  double row_s() const {
    const double usual_s = mean_s_ / (mean_rows_ + kUsualRows);
    const double seen_s = (covariance_ + kTrust * usual_s) / (variance_ + kTrust);
    return std::clamp(seen_s, kLeastShare * usual_s, mean_s_ / mean_rows_);
  }

  // Whether a step of so many rows, which are expected to bring so many tokens, brings more of them in its time when it
  // has one row more, which brings a token with this chance.
  bool pays(double chance, int32_t n_rows, double n_tokens) const {
    return pays(chance, row_s(), step_s(n_rows), n_tokens);
  }
  // Whether that of `taken_s` and so many tokens does when `more_s` more are expected to bring so many more of them.
  // Clearly more: rows are not all of what a token costs.
  static bool pays(double n_more, double more_s, double taken_s, double n_tokens) {
    return n_more * taken_s > kMargin * more_s * n_tokens;
  }
  bool is_known() const { return weight_ > 0; }

 private:
  static constexpr double kMemory = 0.98;
  static constexpr double kMostTimes = 3;  // what a step may take of what it should have
  static constexpr double kUsualRows = 9;  // that cost together what a step costs besides
  static constexpr double kTrust = 1;      // in rows squared: the variance from which on steps tell more than that
  static constexpr double kLeastShare = 0.1;
  static constexpr double kMargin = 1.25;

  double weight_ = 0;
  double mean_rows_ = 1;
  double mean_s_ = 1;
  double variance_ = 0;
  double covariance_ = 0;
};

}  // namespace corosrv
