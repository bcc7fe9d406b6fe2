// Pieces of a grammar's code, and how they are put together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "grammar/grammar_program.h"

namespace corosrv {

using Code = std::vector<Instruction>;

constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

void append(Code& code, Code&& more);

// a | b | c: before each alternative but the last a split that leads to the next, after it a jump to the end.
Code join(std::vector<Code>& alternatives);

// item{least,most}: so many copies, then a loop, or optional copies that all lead to the end.
Code repeat(const Code& item, uint32_t least, uint32_t most);

// How many instructions repeat() makes.
uint64_t repeated_size(size_t item, uint32_t least, uint32_t most);

}  // namespace corosrv
