// Loops whose sequences share prefixes or have little memory, and tasks for them.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "loop/decode_loop.h"
#include "running_loop.h"
#include "tasks.h"

namespace corosrv {

// The scripted model makes its text up from all tokens of the sequence: a token that was lost, or came from a foreign
// sequence, shows in the answer. So tests compare with said_alone(): what the same task is told alone and unshared.

inline DecodeLoop::Limits sharing(int32_t slots, int32_t rows = 64, size_t cache_bytes = 1 << 20) {
  return {slots, rows, 60, cache_bytes, 1};
}

// A prompt of `n_shared` tokens that all have and `own`.
inline Task task_with(size_t n_shared, const std::string& own, int32_t max_tokens = 8) {
  Task task = make_task('s', 1, max_tokens);
  task.prompt.assign(n_shared, 's');
  task.prompt.insert(task.prompt.end(), own.begin(), own.end());
  return task;
}

// A model whose memory holds `n_cells` tokens of all sequences together.
inline void limit_memory(ScriptedBackend& backend, size_t n_cells) {
  backend.before_decode = [n_cells, held = std::map<int32_t, int32_t>()](const ScriptedBackend&,
                                                                         const ScriptedBackend::Rows& rows) mutable {
    std::map<int32_t, int32_t> after;
    for (const Row& row : rows) after[row.slot] = std::max(after[row.slot], row.position + 1);
    size_t n_wanted = 0;
    for (const auto& [slot, n] : after) n_wanted += static_cast<size_t>(n);
    if (n_wanted <= n_cells) return Status::ok();
    return Status(StatusCode::kNoRoom, "full");
  };
}

}  // namespace corosrv
