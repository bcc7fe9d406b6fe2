#include "text_stream.h"

#include <cstdint>

namespace corosrv {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// How many bytes follow `lead`, and which the first of them may be (Unicode 15, table 3-7). Zero followers and an
// empty range for a byte that begins no character.
struct Lead {
  int followers;
  uint8_t low, high;
};

Lead classify(uint8_t lead) {
  if (lead < 0xC2) return {0, 1, 0};
  if (lead < 0xE0) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead < 0xF0) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead < 0xF4) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {0, 1, 0};
}

enum class Part { kWhole, kIncomplete, kInvalid };

// Reads one character at the front of `bytes` (not empty): what it is, and how many bytes belong to it.
Part read_character(std::string_view bytes, size_t& size) {
  size = 1;
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0x80) return Part::kWhole;
  Lead expected = classify(lead);
  if (expected.followers == 0) return Part::kInvalid;
  for (int i = 0; i < expected.followers; ++i) {
    if (size == bytes.size()) return Part::kIncomplete;
    const auto byte = static_cast<uint8_t>(bytes[size]);
    if (byte < expected.low || byte > expected.high) return Part::kInvalid;
    expected.low = 0x80;
    expected.high = 0xBF;
    ++size;
  }
  return Part::kWhole;
}

}  // namespace

std::string TextStream::push(std::string_view bytes) {
  std::string joined = incomplete_;
  joined += bytes;
  incomplete_.clear();

  std::string text;
  text.reserve(joined.size());
  std::string_view rest = joined;
  while (!rest.empty()) {
    size_t size = 0;
    switch (read_character(rest, size)) {
      case Part::kWhole:
        text += rest.substr(0, size);
        break;
      case Part::kInvalid:
        text += kReplacement;
        break;
      case Part::kIncomplete:
        incomplete_ = rest;
        return text;
    }
    rest.remove_prefix(size);
  }
  return text;
}

}  // namespace corosrv
