#include <cmath>
#include <vector>

#include "check.h"
#include "loop/pooler.h"

namespace corosrv {
namespace {

// What three tokens' vectors come to.
std::vector<float> pooled(Pooling pooling, int32_t norm = -1) {
  Pooler pooler({pooling, 2, norm});
  for (const std::vector<float>& vector : {std::vector<float>{3, 4}, {0, 0}, {0, -10}}) pooler.add(vector.data());
  return pooler.result();
}

using Vector = std::vector<float>;

TEST("the mean is of all tokens, cls is the first, last the last, and none is all") {
  CHECK(pooled(Pooling::kMean) == (Vector{1, -2}));
  CHECK(pooled(Pooling::kCls) == (Vector{3, 4}));
  CHECK(pooled(Pooling::kLast) == (Vector{0, -10}));
  CHECK(pooled(Pooling::kNone) == (Vector{3, 4, 0, 0, 0, -10}));
}

TEST("a score is the last one, and is not normalised, and nor are the vectors of all tokens") {
  CHECK(pooled(Pooling::kRank, 2) == (Vector{0, -10}));
  CHECK(pooled(Pooling::kNone, 2) == (Vector{3, 4, 0, 0, 0, -10}));
}

TEST("a vector is normalised to length one, to a largest number of 32760, or to a p-norm of one") {
  CHECK(pooled(Pooling::kCls, 2) == (Vector{0.6f, 0.8f}));
  CHECK(pooled(Pooling::kCls, 0) == (Vector{24570, 32760}));
  CHECK(pooled(Pooling::kCls, 1) == (Vector{3.0f / 7, 4.0f / 7}));
}

TEST("a vector of zeros stays one") {
  Vector zeros{0, 0};
  for (const int32_t norm : {-1, 0, 1, 2, 3}) {
    normalize(zeros, norm);
    CHECK(zeros == (Vector{0, 0}));
  }
}

TEST("a cleared pooler knows nothing of what was added") {
  for (const Pooling pooling : {Pooling::kMean, Pooling::kCls, Pooling::kLast, Pooling::kNone}) {
    Pooler pooler({pooling, 1, -1});
    const float before = 7, after = 1;
    pooler.add(&before);
    pooler.clear();
    pooler.add(&after);
    CHECK(pooler.result() == (Vector{1}));
  }
}

}  // namespace
}  // namespace corosrv
