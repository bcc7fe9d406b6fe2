// How much a JSON text asks of whoever parses it: found in one pass, before a parser that recurses or builds objects.
#pragma once

#include <cstddef>
#include <string_view>

#include "corosrv.h"

namespace corosrv {

struct JsonFault {
  corosrv_json_fault kind = COROSRV_JSON_FINE;
  size_t at = 0;  // byte
};

// The first limit that is exceeded. Says nothing about whether the text is JSON: what is not is given some answer, and
// the parser refuses it. Linear in the text; keeps one number for each open bracket, at most `limits.depth` of them.
JsonFault find_json_fault(std::string_view text, const corosrv_json_limits& limits);

}  // namespace corosrv
