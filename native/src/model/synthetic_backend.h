// A made-up model with set speeds, for load tests of everything around a model.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/options.h"

namespace corosrv {

// Tokens 0 to 255 are bytes, so any text has tokens; the rest are words and one end token. What comes next depends on
// the sequence's tokens alone, so that equal prompts give equal texts.
std::unique_ptr<Backend> make_synthetic_backend(const SyntheticOptions& synthetic, int32_t context, int32_t slots);

// Its vocabulary alone.
std::unique_ptr<Vocabulary> make_synthetic_vocabulary();

}  // namespace corosrv
