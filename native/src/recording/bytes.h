// Numbers and texts as bytes, for recordings: small numbers are short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace corosrv {

// Appends to a buffer, whose memory is kept from one use to the next.
class ByteWriter {
 public:
  explicit ByteWriter(size_t capacity) { bytes_.reserve(capacity); }

  void byte(uint8_t value) { bytes_.push_back(value); }
  // Seven bits in each byte.
  void number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<uint8_t>(value | 0x80));
    bytes_.push_back(static_cast<uint8_t>(value));
  }
  // Small ones are short on both sides of zero.
  void difference(int64_t value) {
    number((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value < 0 ? -1 : 0));
  }
  template <typename Value>
  void fixed(Value value) {
    raw(&value, sizeof(value));
  }
  void text(std::string_view text) {
    number(text.size());
    raw(text.data(), text.size());
  }
  // Of plain values.
  template <typename Value>
  void array(const Value* values, size_t n_values) {
    number(n_values);
    raw(values, n_values * sizeof(Value));
  }
  void raw(const void* data, size_t size) {
    const auto* const begin = static_cast<const uint8_t*>(data);
    if (size > 0) bytes_.insert(bytes_.end(), begin, begin + size);
  }

  const std::vector<uint8_t>& bytes() const { return bytes_; }
  bool is_empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

 private:
  std::vector<uint8_t> bytes_;
};

// Reads what a ByteWriter wrote; whatever is asked of it once the bytes are spent, or wrong, is nought, and is_good()
// false from then on.
class ByteReader {
 public:
  ByteReader() = default;
  ByteReader(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

  bool is_good() const { return is_good_; }
  bool is_at_end() const { return next_ == end_; }
  uint8_t peek() const { return is_at_end() ? uint8_t{0} : *next_; }

  uint8_t byte() {
    uint8_t value = 0;
    raw(&value, 1);
    return value;
  }
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t part = byte();
      value |= static_cast<uint64_t>(part & 0x7F) << shift;
      if ((part & 0x80) == 0) return value;
    }
    is_good_ = false;
    return 0;
  }
  int64_t difference() {
    const uint64_t value = number();
    return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  template <typename Value>
  Value fixed() {
    Value value{};
    raw(&value, sizeof(value));
    return value;
  }
  std::string text() {
    const size_t size = count(1);
    std::string text(size, '\0');
    raw(text.data(), size);
    return text;
  }
  template <typename Value>
  std::vector<Value> array() {
    std::vector<Value> values(count(sizeof(Value)));
    raw(values.data(), values.size() * sizeof(Value));
    return values;
  }
  void raw(void* data, size_t size) {
    if (static_cast<size_t>(end_ - next_) < size) {
      is_good_ = false;
      next_ = end_;
      return;
    }
    if (size > 0) std::memcpy(data, next_, size);
    next_ += size;
  }
  // How many items of this size follow: no more than there are bytes for.
  size_t count(size_t item_size) {
    const uint64_t n_items = number();
    if (n_items <= static_cast<size_t>(end_ - next_) / item_size) return static_cast<size_t>(n_items);
    is_good_ = false;
    next_ = end_;
    return 0;
  }

 private:
  const uint8_t* next_ = nullptr;
  const uint8_t* end_ = nullptr;
  bool is_good_ = true;
};

}  // namespace corosrv
