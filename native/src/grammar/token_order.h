// A vocabulary in the order of its texts.
#pragma once

#include <cstdint>
#include <vector>

#include "model/backend.h"

namespace corosrv {

// All tokens that add text and end nothing, as a tree of their bytes: what is known of a beginning that tokens share
// is found once, and a byte that is refused takes all that begin so with it. Made once for a model; never changes.
class TokenOrder {
 public:
  explicit TokenOrder(const Vocabulary& vocabulary);

  // The byte after those of its parents. Parents come before their children.
  struct Node {
    uint32_t depth;        // bytes before this one
    uint32_t end;          // the first node that is not below this one
    uint32_t first_token;  // in tokens(): here end those up to the next node's first
    uint8_t byte;
  };
  // With one more at the end, which is nobody's parent.
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Token>& tokens() const { return tokens_; }

 private:
  std::vector<Node> nodes_;
  std::vector<Token> tokens_;
};

}  // namespace corosrv
