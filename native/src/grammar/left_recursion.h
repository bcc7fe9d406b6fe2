// Rules that may come to themselves without a character in between.
#pragma once

#include <cstdint>

#include "grammar/grammar_program.h"

namespace corosrv {

// The first rule found that is its own beginning, or -1. Fills in which rules allow the empty text.
int32_t find_left_recursion(Program& program);

}  // namespace corosrv
