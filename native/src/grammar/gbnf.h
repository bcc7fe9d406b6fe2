// GBNF, the notation of llama.cpp's grammars, to a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar_program.h"

namespace corosrv {

// What a grammar may be. Everything is bounded before it is built: a text of some bytes can ask for terabytes.
struct GrammarLimits {
  size_t bytes = 64 * 1024;
  int32_t depth = 128;       // brackets in brackets
  size_t rules = 2000;       // named ones
  uint32_t repeats = 2000;   // of one item, in braces
  size_t elements = 65'536;  // instructions, with everything written out that is repeated
  double token_ms = 20;      // of looking for one token, some
};

// Compiles `text`, whose start is the rule `root`. Any thread; takes a few milliseconds for the largest text allowed.
// Refused with StatusCode::kInvalidGrammar, and a sentence that begins with line and column (both from 1, in
// characters): what is no GBNF, exceeds a limit, uses a rule that is not defined or is its own beginning (left
// recursion), and references to tokens (`<...>`), which GBNF has and this server does not.
Status compile_gbnf(std::string_view text, Program& program, const GrammarLimits& limits = {});

}  // namespace corosrv
