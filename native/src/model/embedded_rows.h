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

// Rows that the model reads in a way of their own, an image's or a part of one's.
struct RowSegment {
  int32_t n_rows = 0;
  bool is_non_causal = false;  // each row sees all of them: they are computed in one batch, with nothing else
  int32_t n_positions = 0;     // by how much the positions of the sequence move; n_rows where `positions` is empty
  std::vector<RopePosition> positions;  // of each row, t, y and x from the segment's first on; none: one after another
};

// Constant, and shared by the tasks of one prompt; any thread.
class EmbeddedRows {
 public:
  // `numbers`: `width` of each row, one row for each negative id of `prompt`, in its order. `segments`: of all rows, in
  // the same order, with no token inside of one; none: all rows are read as tokens are.
  EmbeddedRows(const std::vector<Token>& prompt, size_t width, std::vector<float> numbers,
               std::vector<RowSegment> segments = {})
      : width_(width), numbers_(std::move(numbers)), segments_(std::move(segments)) {
    size_t n_rows = 0, n_segments = 0;
    int32_t n_left = 0;  // rows of the current segment
    for (size_t at = 0; at < prompt.size(); ++at) {
      const bool is_rows = is_row(prompt[at]);
      const bool begins_segment = is_rows && n_left == 0 && n_segments < segments_.size();
      const RowSegment* const segment = begins_segment ? &segments_[n_segments++] : nullptr;
      if (begins_segment) n_left = segment->n_rows;
      if (begins_segment || at == 0 || is_rows != is_row(prompt[at - 1])) begin_run(at, is_rows, n_rows, segment);
      if (!is_rows) continue;
      ++n_rows;
      n_left = std::max(n_left - 1, 0);
    }
    if (runs_.empty() || runs_.back().is_rows) begin_run(prompt.size(), false, n_rows, nullptr);  // what is generated
    assert(n_rows * width == numbers_.size());
  }
  EmbeddedRows(const EmbeddedRows&) = delete;
  EmbeddedRows& operator=(const EmbeddedRows&) = delete;

  // Returns the row at this place of the prompt; null where a token stands.
  const float* at(int32_t place) const {
    const Run& run = run_of(place);
    return run.is_rows ? &numbers_[(run.first_row + static_cast<size_t>(place - run.begin)) * width_] : nullptr;
  }

  // Returns where the tokens, or the rows, end that stand at this place and right behind it. Rows of different segments
  // come apart.
  int32_t end_of_run(int32_t place) const {
    const Run* next = &run_of(place) + 1;
    return next == runs_.data() + runs_.size() ? std::numeric_limits<int32_t>::max() : next->begin;
  }

  // Returns where the model sees what stands at this place.
  RopePosition position(int32_t place) const {
    const Run& run = run_of(place);
    const int32_t offset = place - run.begin;
    if (!run.has_positions()) return text_position(run.first_position + offset);
    const RopePosition& own = run.segment->positions[static_cast<size_t>(offset)];
    return {run.first_position + own.t, run.first_position + own.y, run.first_position + own.x, own.z};
  }

  // Returns whether a row stands here that sees all rows of its segment.
  bool is_non_causal(int32_t place) const { return run_of(place).is_non_causal(); }

  // Returns the last place up to this one where a computed prompt may be cut. Segments that are not causal are computed
  // in one piece, and rows with positions of their own may share them, by which memory is cut.
  int32_t cut(int32_t place) const {
    const Run& run = run_of(place);
    return run.is_non_causal() || run.has_positions() ? run.begin : place;
  }

  // Returns the rows of the longest segment that is not causal.
  int32_t most_non_causal() const {
    int32_t most = 0;
    for (const RowSegment& segment : segments_) most = std::max(most, segment.is_non_causal ? segment.n_rows : 0);
    return most;
  }

 private:
  struct Run {
    int32_t begin;  // its first place
    bool is_rows;
    size_t first_row;
    int32_t first_position;
    const RowSegment* segment;  // null: read as tokens are

    bool is_non_causal() const { return segment != nullptr && segment->is_non_causal; }
    bool has_positions() const { return segment != nullptr && !segment->positions.empty(); }
  };

  void begin_run(size_t at, bool is_rows, size_t first_row, const RowSegment* segment) {
    const auto begin = static_cast<int32_t>(at);
    int32_t first_position = begin;
    if (!runs_.empty()) {
      const Run& last = runs_.back();
      first_position = last.first_position + (last.has_positions() ? last.segment->n_positions : begin - last.begin);
    }
    runs_.push_back({begin, is_rows, first_row, first_position, segment});
  }

  const Run& run_of(int32_t place) const {
    const auto next = std::upper_bound(runs_.begin(), runs_.end(), place,
                                       [](int32_t wanted, const Run& run) { return wanted < run.begin; });
    return *std::prev(next);
  }

  const size_t width_;
  const std::vector<float> numbers_;
  const std::vector<RowSegment> segments_;  // of which runs point to some
  std::vector<Run> runs_;                   // in order; the last one has no end
};

}  // namespace corosrv
