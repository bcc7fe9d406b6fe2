// A token that may come next, with its logit.
#pragma once

#include "model/types.h"

namespace corosrv {

struct Candidate {
  Token token;
  float logit;
};

// In order of logit, equal ones by token.
inline bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

}  // namespace corosrv
