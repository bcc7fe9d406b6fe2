// Penalties for tokens that came before.
#pragma once

#include <unordered_map>
#include <vector>

#include "sampling/stage.h"

namespace corosrv {

// Repeat, presence and frequency penalty.
class Penalties final : public SparseStage {
 public:
  // `context`: tokens that a slot holds; the window is never longer.
  Penalties(const Sampling& sampling, int32_t context);

  static bool is_on(const Sampling& sampling);

  void change(Logits& logits) override;
  bool may_raise() const override { return !(repeat_ >= 1 && presence_ >= 0 && frequency_ >= 0); }
  void accept(Token token) override;

 private:
  const float repeat_;
  const float presence_;
  const float frequency_;
  const size_t size_;
  std::vector<Token> window_;                  // a ring once it is full
  size_t oldest_ = 0;                          // in window_
  std::unordered_map<Token, int32_t> counts_;  // of the tokens in it
};

// How far a stage looks back that was asked for `wanted` tokens, where -1 is the context.
size_t window_size(int32_t wanted, int32_t context);

}  // namespace corosrv
