// Any tokens, any stop strings: what leaves is UTF-8, has no stop string in it, and is what its tokens say.
#include "base/utf8.h"
#include "fuzz.h"
#include "text/answer_text.h"

namespace corosrv {
namespace {

bool is_utf8(const std::string& text) {
  Utf8Decoder decoder;
  for (const char byte : text) {
    if (decoder.push(static_cast<uint8_t>(byte)) == Utf8Decoder::Part::kInvalid) return false;
  }
  return decoder.is_between();
}

std::string decoded(const std::string& bytes) { return TextStream().push(bytes); }

void run(std::vector<std::string> pieces) {
  std::vector<std::string> stops;
  for (int i = 0; i < 2 && !pieces.empty(); ++i, pieces.erase(pieces.begin())) {
    if (!pieces[0].empty() && is_utf8(pieces[0])) stops.push_back(pieces[0]);
  }
  AnswerText answer(stops);
  std::string text;
  std::string told;
  for (const std::string& piece : pieces) {
    TokenList token;
    token.add(1, -1.0f, piece, 0);
    text += answer.push(piece, std::move(token));
    told += answer.take_tokens().pieces();
    if (answer.has_stopped()) break;
  }
  text += answer.flush();
  told += answer.take_tokens().pieces();

  require(is_utf8(text), "what leaves is UTF-8");
  // A byte that is shown to be no text by the first of a stop string may be told of with that one.
  const bool is_text = text.find("\xEF\xBF\xBD") == std::string::npos;
  if (is_text) require(decoded(told) == text, "the bytes of the tokens are the text");
  for (const std::string& stop : stops) require(text.find(stop) == std::string::npos, "no stop string leaves");
}

}  // namespace
}  // namespace corosrv

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  corosrv::run(corosrv::pieces_of(data, size, 9));
  return 0;
}
