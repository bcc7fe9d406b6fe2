// Implements the Vocabulary interface with libllama.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "llama/handles.h"
#include "model/backend.h"

namespace corosrv {

// The tokens of a loaded model. Reads all texts once, so that it can return views of them.
class LlamaVocabulary final : public Vocabulary {
 public:
  // Of a model that outlives it.
  explicit LlamaVocabulary(const llama_vocab* vocab);
  // Of a model that lives as long.
  explicit LlamaVocabulary(Model model);

  int32_t size() const override { return static_cast<int32_t>(texts_.size()); }
  std::string_view text(Token token) const override { return texts_[static_cast<size_t>(token)]; }
  std::string_view special_text(Token token) const override { return special_texts_[static_cast<size_t>(token)]; }
  bool is_end_of_generation(Token token) const override { return llama_vocab_is_eog(vocab_, token); }
  bool is_control(Token token) const override { return llama_vocab_is_control(vocab_, token); }
  const std::vector<Token>& end_tokens() const override { return end_tokens_; }
  std::vector<Token> tokenize(std::string_view text, bool add_special, bool parse_special) const override;
  void show(const std::vector<Token>& tokens) override;

 private:
  std::string piece(Token token, bool special) const;

  Model model_;  // null: somebody else's
  const llama_vocab* const vocab_;
  std::vector<std::string> texts_;
  std::vector<std::string> special_texts_;
  std::vector<Token> end_tokens_;
};

}  // namespace corosrv
