// How many bytes of embedding rows wait or run, of all tasks together.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "model/embedded_rows.h"

namespace corosrv {

// Rows are large, and so the number of tasks that may wait does not bound them. Any thread.
class RowBytes {
 public:
  explicit RowBytes(size_t limit) : limit_(limit) {}
  RowBytes(const RowBytes&) = delete;
  RowBytes& operator=(const RowBytes&) = delete;

  // Counts these bytes, or returns false where they would be too many. What is over the limit by itself is taken while
  // there is nothing else.
  bool take(size_t bytes) {
    size_t held = held_.load(std::memory_order_relaxed);
    do {
      if (held > 0 && (bytes > limit_ || held > limit_ - bytes)) return false;
    } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }
  void give_back(size_t bytes) { held_.fetch_sub(bytes, std::memory_order_relaxed); }

  size_t held() const { return held_.load(std::memory_order_relaxed); }
  size_t limit() const { return limit_; }

 private:
  const size_t limit_;
  std::atomic<size_t> held_{0};
};

// Makes a prompt's rows, whose bytes are given back when the last task lets go of them. Null where they would be too
// many.
inline std::shared_ptr<const EmbeddedRows> make_counted_rows(const std::shared_ptr<RowBytes>& row_bytes,
                                                             const std::vector<Token>& prompt, size_t width,
                                                             const float* numbers, size_t n_numbers,
                                                             std::vector<RowSegment> segments = {}) {
  const size_t bytes = n_numbers * sizeof(float);
  if (!row_bytes->take(bytes)) return nullptr;
  const std::shared_ptr<void> lease(nullptr, [row_bytes, bytes](void*) { row_bytes->give_back(bytes); });
  return {new EmbeddedRows(prompt, width, std::vector<float>(numbers, numbers + n_numbers), std::move(segments)),
          [lease](const EmbeddedRows* rows) { delete rows; }};
}

}  // namespace corosrv
