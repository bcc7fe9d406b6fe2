// Hashes that tell equal things from others; not for keeping secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace corosrv {

constexpr uint64_t kHashSeed = 0xCBF29CE484222325ull;

inline uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

// Of bytes one by one: what comes in two pieces hashes as it does in one.
inline uint64_t mixed_bytes(uint64_t hash, const void* data, size_t size) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3ull;
  return hash;
}

// Of eight bytes at a time, for much of them; the size counts.
inline uint64_t hash_of(const void* data, size_t size, uint64_t hash = kHashSeed) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  size_t at = 0;
  for (; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes + at, sizeof(word));
    hash = mixed(hash, word);
  }
  return mixed(mixed_bytes(hash, bytes + at, size - at), size);
}

}  // namespace corosrv
