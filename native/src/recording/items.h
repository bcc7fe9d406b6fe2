// What a recording's frames hold: items, in the order in which the loop asked for them and told of them.
#pragma once

#include <cstdint>

namespace corosrv {

enum class Item : uint8_t {
  kNone = 0,
  kAnew = 1,   // the loop begins: first of a segment. Tokens that are shown
  kTime = 2,   // since the time before, in nanoseconds
  kFalse = 3,  // so many looks found nothing
  kTrue = 4,   // so many looks found nothing, and the next one did
  kMail = 5,
  kPlan = 6,   // rows to decode, of prompts, of guesses; hash
  kBatch = 7,  // hash
  kEnd = 8,    // of a sequence
};

// Bits of a mail's first byte.
constexpr uint8_t kMailCancels = 1;
constexpr uint8_t kMailDrains = 2;
constexpr uint8_t kMailCloses = 4;

}  // namespace corosrv
