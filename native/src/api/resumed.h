// Tasks that go on where an earlier engine stopped.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/backend.h"
#include "model/types.h"

namespace corosrv {

// Follows what was generated as the decode loop will: through the grammars and stop strings, which have to be compiled,
// to the last byte that was sent. Takes time in proportion to it.
Status check_resumed(const std::vector<Task>& tasks, const Backend& backend);

}  // namespace corosrv
