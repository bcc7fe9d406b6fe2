#include "sampling/top_k.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "sampling/vectorised.h"

namespace corosrv {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr size_t kBlock = 128;
constexpr size_t kLanes = 16;

// Maxima of the whole blocks of kBlock values. Lane by lane, so that the compiler need not reorder float operations.
COROSRV_VECTORISED void block_maxima(const float* values, size_t blocks, float* maxima) {
  for (size_t block = 0; block < blocks; ++block) {
    const float* from = values + block * kBlock;
    float lanes[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = kNone;
    for (size_t i = 0; i < kBlock; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        // A NaN compares false and leaves the lane as it is.
        lanes[lane] = from[i + lane] > lanes[lane] ? from[i + lane] : lanes[lane];
      }
    }
    float most = kNone;
    for (size_t lane = 0; lane < kLanes; ++lane) most = lanes[lane] > most ? lanes[lane] : most;
    maxima[block] = most;
  }
}

void gather(const float* logits, size_t from, size_t to, float least, std::vector<Candidate>& found) {
  for (size_t i = from; i < to; ++i) {
    if (logits[i] >= least && logits[i] > kNone) found.push_back({static_cast<Token>(i), logits[i]});
  }
}

}  // namespace

Token argmax(const float* logits, size_t size) {
  thread_local std::vector<float> maxima;
  const size_t blocks = size / kBlock;
  maxima.resize(blocks);
  block_maxima(logits, blocks, maxima.data());

  Token best = -1;
  float most = kNone;
  const auto scan = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      if (logits[i] > most) {
        most = logits[i];
        best = static_cast<Token>(i);
      }
    }
  };
  for (size_t block = 0; block < blocks; ++block) {
    if (maxima[block] > most) scan(block * kBlock, (block + 1) * kBlock);
  }
  scan(blocks * kBlock, size);
  return best;
}

void top_k(const float* logits, size_t size, size_t k, std::vector<Candidate>& found) {
  thread_local std::vector<float> maxima;
  thread_local std::vector<float> ranked;
  found.clear();
  const size_t blocks = size / kBlock;
  maxima.resize(blocks);
  block_maxima(logits, blocks, maxima.data());

  // The k-th largest block maximum is a lower bound for the k-th largest value: k values are at least that large.
  float least = kNone;
  if (k <= blocks) {
    ranked = maxima;
    std::nth_element(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(k - 1), ranked.end(),
                     std::greater<float>());
    least = ranked[k - 1];
  }
  for (size_t block = 0; block < blocks; ++block) {
    if (maxima[block] >= least) gather(logits, block * kBlock, (block + 1) * kBlock, least, found);
  }
  gather(logits, blocks * kBlock, size, least, found);

  keep_best(k, found);
}

void keep_best(size_t k, std::vector<Candidate>& found) {
  if (found.size() > k) {
    std::nth_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(k), found.end(), is_likelier);
    found.resize(k);
  }
  std::sort(found.begin(), found.end(), is_likelier);
}

}  // namespace corosrv
