// A vocabulary of bytes, and words if a test wants some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/backend.h"

namespace corosrv {

// Tokens 0 to 255 are the bytes, kEnd ends a generation, further ones have the texts given; one of kSpokenEnd ends a
// generation too, though it has a text.
class ByteVocabulary final : public Vocabulary {
 public:
  static constexpr Token kEnd = 256;
  static constexpr Token kFirstWord = 257;
  static constexpr std::string_view kSpokenEnd = "<over>";

  explicit ByteVocabulary(std::vector<std::string> words = {}) : words_(std::move(words)), end_tokens_{kEnd} {
    for (size_t byte = 0; byte < sizeof bytes_; ++byte) bytes_[byte] = static_cast<char>(byte);
  }

  int32_t size() const override { return kFirstWord + static_cast<int32_t>(words_.size()); }
  std::string_view text(Token token) const override {
    if (token < kEnd) return {&bytes_[token], 1};
    return token == kEnd ? std::string_view() : words_[static_cast<size_t>(token - kFirstWord)];
  }
  std::string_view special_text(Token token) const override { return token == kEnd ? "<end>" : text(token); }
  bool is_end_of_generation(Token token) const override { return token == kEnd || text(token) == kSpokenEnd; }
  bool is_control(Token token) const override { return token == kEnd; }
  const std::vector<Token>& end_tokens() const override { return end_tokens_; }
  std::vector<Token> tokenize(std::string_view text, bool, bool) const override {
    std::vector<Token> tokens;
    for (const char byte : text) tokens.push_back(static_cast<uint8_t>(byte));
    return tokens;
  }

 private:
  char bytes_[256];
  const std::vector<std::string> words_;
  const std::vector<Token> end_tokens_;
};

}  // namespace corosrv
