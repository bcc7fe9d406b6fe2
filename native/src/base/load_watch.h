// How far a model has been loaded, and whether it is still wanted.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace corosrv {

// Written by the thread that loads, read and given up by any.
class LoadWatch {
 public:
  // Makes the second half of part() that of the weights which are packed once they are there.
  void expect_packing() { packs_.store(true); }
  // Says how many bytes of weights there are.
  void note_size(uint64_t bytes) { bytes_.store(bytes); }
  // Notes the part of the weights that is there, of 1. Returns false if the load was given up.
  bool note_read(float part) {
    read_.store(part);
    return !is_given_up_.load();
  }
  // Notes that so many more bytes of weights are packed.
  void note_packed(uint64_t bytes) { packed_bytes_.fetch_add(bytes); }

  // Returns the part of the work that is done, of 1. What is packed may be less than all: then it is over before.
  double part() const {
    if (!packs_.load()) return read_.load();
    const uint64_t bytes = bytes_.load();
    const double packed = bytes == 0 ? 0 : static_cast<double>(packed_bytes_.load()) / static_cast<double>(bytes);
    return (read_.load() + std::min(packed, 1.0)) / 2;
  }

  // Makes the load end soon, by failing.
  void give_up() { is_given_up_.store(true); }
  bool is_given_up() const { return is_given_up_.load(); }

 private:
  std::atomic<bool> is_given_up_{false};
  std::atomic<bool> packs_{false};
  std::atomic<float> read_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> packed_bytes_{0};
};

}  // namespace corosrv
