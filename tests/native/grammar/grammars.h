// Grammars for tests, from their text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "check.h"
#include "grammar/gbnf.h"
#include "grammar/grammar.h"
#include "grammar/recognizer.h"

namespace corosrv {

// Leaves the test when the text is refused.
inline std::shared_ptr<const Program> compiled(std::string_view text) {
  Program program;
  const Status status = compile_gbnf(text, program);
  if (!status.is_ok()) check::fail(__FILE__, __LINE__, std::string(text) + ": " + status.message());
  REQUIRE(status.is_ok());
  return std::make_shared<const Program>(std::move(program));
}

inline std::shared_ptr<const Grammar> make_grammar(std::string_view text, const Vocabulary& vocabulary) {
  return std::make_shared<const Grammar>(compiled(text), vocabulary, std::make_shared<const TokenOrder>(vocabulary));
}

// Pushes bytes until one is refused; whether all were taken.
inline bool push_all(Recognizer& recognizer, std::string_view text) {
  for (const char byte : text) {
    if (!recognizer.push(static_cast<uint8_t>(byte))) return false;
  }
  return true;
}

inline std::string repeated(std::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace corosrv
