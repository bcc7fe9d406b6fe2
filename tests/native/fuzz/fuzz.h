// What a fuzz target offers: libFuzzer calls it with its own texts, and drive.cpp, where there is no clang, with those
// of the corpus and random changes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace corosrv {

// Ends the process where an invariant does not hold, as a sanitizer would.
inline void require(bool holds, const char* words) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", words);
  std::abort();
}

// Cuts an input into pieces: each begins with a byte that says how long it is.
inline std::vector<std::string> pieces_of(const uint8_t* data, size_t size, size_t most) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < size;) {
    const size_t length = data[at] % most;
    const size_t end = at + 1 + length < size ? at + 1 + length : size;
    pieces.emplace_back(reinterpret_cast<const char*>(data) + at + 1, end - at - 1);
    at = end;
  }
  return pieces;
}

}  // namespace corosrv
