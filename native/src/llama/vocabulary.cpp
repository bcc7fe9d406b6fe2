#include "llama/vocabulary.h"

#include <algorithm>
#include <utility>

namespace corosrv {

LlamaVocabulary::LlamaVocabulary(const llama_vocab* vocab) : vocab_(vocab) {
  const int32_t n_tokens = llama_vocab_n_tokens(vocab);
  texts_.reserve(static_cast<size_t>(n_tokens));
  special_texts_.reserve(static_cast<size_t>(n_tokens));
  for (Token token = 0; token < n_tokens; ++token) {
    texts_.push_back(piece(token, false));
    special_texts_.push_back(piece(token, true));
    if (llama_vocab_is_eog(vocab, token)) end_tokens_.push_back(token);
  }
}

LlamaVocabulary::LlamaVocabulary(Model model) : LlamaVocabulary(llama_model_get_vocab(model.get())) {
  model_ = std::move(model);
}

void LlamaVocabulary::show(const std::vector<Token>& tokens) {
  for (const Token token : tokens) {
    if (!is_end_of_generation(token)) texts_[static_cast<size_t>(token)] = special_text(token);
  }
}

std::vector<Token> LlamaVocabulary::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  const auto size = static_cast<int32_t>(text.size());
  std::vector<Token> tokens(text.size() + 2);
  const int32_t n_tokens = llama_tokenize(vocab_, text.data(), size, tokens.data(), static_cast<int32_t>(tokens.size()),
                                          add_special, parse_special);
  // Never more tokens than bytes and the two special ones; a vocabulary that breaks this gets a second call.
  if (n_tokens < 0) {
    tokens.resize(static_cast<size_t>(-n_tokens));
    llama_tokenize(vocab_, text.data(), size, tokens.data(), -n_tokens, add_special, parse_special);
  } else {
    tokens.resize(static_cast<size_t>(n_tokens));
  }
  return tokens;
}

std::string LlamaVocabulary::piece(Token token, bool special) const {
  std::string text(32, '\0');
  const auto capacity = static_cast<int32_t>(text.size());
  int32_t size = llama_token_to_piece(vocab_, token, text.data(), capacity, 0, special);
  if (size < 0) {
    text.resize(static_cast<size_t>(-size));
    size = llama_token_to_piece(vocab_, token, text.data(), -size, 0, special);
  }
  text.resize(static_cast<size_t>(std::max(size, 0)));
  return text;
}

}  // namespace corosrv
