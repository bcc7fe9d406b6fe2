// Random numbers of one sequence.
#pragma once

#include <cstdint>

namespace corosrv {

// SplitMix64 (Steele, Lea, Flood 2014): eight bytes of state where std::mt19937 has 2,500, and the same numbers on
// every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t state() const { return state_; }
  void restore(uint64_t state) { state_ = state; }

  // In [0, 1), of 24 bits.
  float next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return static_cast<float>(z >> 40) * 0x1p-24f;
  }

 private:
  uint64_t state_;
};

}  // namespace corosrv
