// The embedding rows of a prompt, and where they stand in it.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "model/types.h"

namespace corosrv {

// Tells whether a row stands here in a prompt. Its id is private: equal ids stand for equal rows, so that prefixes are
// compared by ids alone.
inline bool is_row(Token id) { return id < 0; }

// Constant, and shared by the tasks of one prompt; any thread.
class EmbeddedRows {
 public:
  // `numbers`: `width` of each row, one row for each negative id of `prompt`, in its order.
  EmbeddedRows(const std::vector<Token>& prompt, size_t width, std::vector<float> numbers)
      : width_(width), numbers_(std::move(numbers)) {
    size_t n_rows = 0;
    for (size_t at = 0; at < prompt.size(); ++at) {
      if (at == 0 || is_row(prompt[at]) != is_row(prompt[at - 1])) begin_run(at, is_row(prompt[at]), n_rows);
      n_rows += is_row(prompt[at]) ? 1 : 0;
    }
    if (runs_.empty() || runs_.back().is_rows) begin_run(prompt.size(), false, n_rows);  // what is generated
    assert(n_rows * width == numbers_.size());
  }

  // Returns the row at this position of the prompt; null where a token stands.
  const float* at(int32_t position) const {
    const Run& run = run_of(position);
    return run.is_rows ? &numbers_[(run.first_row + static_cast<size_t>(position - run.begin)) * width_] : nullptr;
  }

  // Returns where the tokens, or the rows, end that stand at this position and right behind it.
  int32_t end_of_run(int32_t position) const {
    const Run* next = &run_of(position) + 1;
    return next == runs_.data() + runs_.size() ? std::numeric_limits<int32_t>::max() : next->begin;
  }

 private:
  struct Run {
    int32_t begin;  // its first position
    bool is_rows;
    size_t first_row;
  };

  void begin_run(size_t at, bool is_rows, size_t first_row) {
    runs_.push_back({static_cast<int32_t>(at), is_rows, first_row});
  }

  const Run& run_of(int32_t position) const {
    const auto next = std::upper_bound(runs_.begin(), runs_.end(), position,
                                       [](int32_t wanted, const Run& run) { return wanted < run.begin; });
    return *std::prev(next);
  }

  const size_t width_;
  const std::vector<float> numbers_;
  std::vector<Run> runs_;  // in order; the last one has no end
};

}  // namespace corosrv
