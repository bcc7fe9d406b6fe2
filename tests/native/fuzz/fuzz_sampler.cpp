// Any logits, any sampling: a token that is allowed is drawn, or none.
#include <cmath>
#include <cstring>
#include <limits>

#include "../fakes/byte_vocabulary.h"
#include "fuzz.h"
#include "sampling/sampler.h"

namespace corosrv {
namespace {

// Takes numbers off the front of the input, and zeros when it is used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t next() { return at_ < size_ ? data_[at_++] : 0; }
  float number() {
    static const float odd[] = {0.0f,
                                1.0f,
                                -1.0f,
                                1e30f,
                                -1e30f,
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
    const uint8_t byte = next();
    return byte >= 248 ? odd[byte - 248] : static_cast<float>(byte) / 16 - 6;
  }
  float share() { return static_cast<float>(next()) / 255; }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

Sampling any_sampling(Bytes& bytes) {
  Sampling sampling;
  sampling.temperature = 2 * bytes.share();
  sampling.top_k = bytes.next() % 64;
  sampling.top_p = bytes.share();
  sampling.min_p = bytes.share();
  sampling.typical_p = bytes.share();
  sampling.repeat_penalty = 0.5f + bytes.share();
  sampling.top_n_sigma = 4 * bytes.share() - 1;
  sampling.xtc_probability = bytes.share();
  sampling.dynatemp_range = bytes.share() - 0.5f;
  sampling.dry_multiplier = bytes.share();
  sampling.mirostat = bytes.next() % 6 % 3;
  sampling.adaptive_target = 2 * bytes.share() - 1;
  sampling.min_keep = bytes.next() % 4;
  sampling.n_probs = bytes.next() % 6 - 1;
  sampling.post_sampling_probs = bytes.next() % 2 == 0;
  std::vector<SamplerKind> order;
  for (const SamplerKind sampler : sampling.samplers) {
    const size_t place = bytes.next() % (order.size() + 1);
    if (place < 9) order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), sampler);
  }
  sampling.samplers = order;
  return sampling;
}

void run(Bytes bytes) {
  static const ByteVocabulary vocabulary;
  Sampler sampler(any_sampling(bytes), vocabulary, 32);
  for (int draw = 0; draw < 4; ++draw) {
    std::vector<float> logits(static_cast<size_t>(vocabulary.size()), bytes.number());
    for (int i = 0; i < 16; ++i) logits[bytes.next()] = bytes.number();
    TokenList told;
    const Token token = sampler.draw(logits.data(), &told);
    require(token >= -1 && token < vocabulary.size(), "a token is one of the vocabulary's");
    for (const auto& entry : told.entries()) require(std::isfinite(entry.logprob), "every logprob is finite");
    if (token >= 0) sampler.accept(token);
  }
}

}  // namespace
}  // namespace corosrv

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  corosrv::run(corosrv::Bytes(data, size));
  return 0;
}
