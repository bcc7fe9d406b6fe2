#include "text/text_stream.h"

#include <cstdint>

#include "base/utf8.h"

namespace corosrv {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

using Part = Utf8Decoder::Part;

// Reads one character at the front of `bytes` (not empty): what it is, and how many bytes belong to it. The byte that
// makes it invalid does not, unless it is the first.
Part read_character(std::string_view bytes, size_t& size) {
  Utf8Decoder decoder;
  Part part = decoder.push(static_cast<uint8_t>(bytes[0]));
  for (size = 1; part == Part::kIncomplete && size < bytes.size(); ++size) {
    part = decoder.push(static_cast<uint8_t>(bytes[size]));
    if (part == Part::kInvalid) break;
  }
  return part;
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
