// A vocabulary in the order of its texts.
#pragma once

#include <cstdint>
#include <vector>

#include "backend.h"

namespace corosrv {

// All tokens that add text and end nothing, sorted by their bytes: tokens that begin alike stand together, and what is
// known of their common beginning is found once. Made once for a model; never changes.
class TokenOrder {
 public:
  explicit TokenOrder(const Vocabulary& vocabulary);

  struct Entry {
    Token token;
    uint32_t n_shared;  // bytes at the front that the entry before has too
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

}  // namespace corosrv
