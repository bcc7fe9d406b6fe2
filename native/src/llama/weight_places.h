// Where the weights of a model file go: to other devices, or nowhere.
#pragma once

#include <string>

#include "model/options.h"

namespace corosrv {

// Returns whether the processor multiplies by more than half of the bytes of a file's weights. `n_layers`: of the
// model. Reads the heads of all files that it is split into; a file that cannot be read is the processor's.
bool stays_mostly(const std::string& path, const Placement& placement, int32_t n_layers);

}  // namespace corosrv
