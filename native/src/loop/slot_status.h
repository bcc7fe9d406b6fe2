// What a slot does, or did last.
#pragma once

#include <cstdint>

namespace corosrv {

struct SlotStatus {
  int64_t task = -1;  // its id; -1: nothing so far, and what follows says nothing
  bool is_busy = false;
  int32_t prompt_tokens = 0;
  int32_t computed_tokens = 0;  // of the prompt, so far
  int32_t cached_tokens = 0;    // of the prompt, not computed for it
  int32_t generated_tokens = 0;
  bool has_new_line = false;  // in the text so far
};

}  // namespace corosrv
