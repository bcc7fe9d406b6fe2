// The last step: one token of those that the stages have left.
#pragma once

#include <array>
#include <memory>

#include "sampling/stage.h"

namespace corosrv {

// One sequence's; used by one thread at a time.
class Chooser {
 public:
  virtual ~Chooser() = default;

  // The place of the token among the candidates. Leaves in `candidates` and `weights` the distribution that it was
  // drawn from; `candidates` may be in any order then.
  virtual size_t choose(Candidates& candidates, std::vector<float>& weights, Random& random) = 0;

  // What was chosen last is part of the sequence.
  virtual void accept() {}

  // What it remembers between an accept() and the next choice.
  using State = std::array<float, 2>;
  virtual State state() const { return {}; }
  virtual void restore(const State&) {}
};

// As `sampling` asks. `n_vocab`: tokens that the model has.
std::unique_ptr<Chooser> make_chooser(const Sampling& sampling, bool is_greedy, int32_t n_vocab);

// A place in proportion to its weight.
size_t draw_by_weight(const std::vector<float>& weights, Random& random);

}  // namespace corosrv
