// UTF-8, a byte at a time.
#pragma once

#include <cstdint>

namespace corosrv {

// Puts bytes together to code points, and says which code points the bytes so far may still become: what a grammar
// asks about a token that ends inside a character. Strict: no surrogates, no overlong forms (Unicode 15, table 3-7).
class Utf8Decoder {
 public:
  enum class Part { kWhole, kIncomplete, kInvalid };

  // Nothing may be pushed after kInvalid.
  Part push(uint8_t byte) { return n_missing_ == 0 ? push_lead(byte) : push_follower(byte); }

  // No character has been begun and not ended.
  bool is_between() const { return n_missing_ == 0; }
  // After kWhole: the character.
  uint32_t code_point() const { return value_; }
  // After kIncomplete: the least and the most that the character can become.
  uint32_t least() const { return spread(low_, 0x00); }
  uint32_t most() const { return spread(high_, 0x3F); }

 private:
  Part push_lead(uint8_t byte) {
    low_ = 0x80;
    high_ = 0xBF;
    if (byte < 0x80) return whole(byte);
    if (byte < 0xC2 || byte > 0xF4) return Part::kInvalid;
    n_missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    value_ = byte & (0x3Fu >> n_missing_);
    if (byte == 0xE0) low_ = 0xA0;
    if (byte == 0xED) high_ = 0x9F;
    if (byte == 0xF0) low_ = 0x90;
    if (byte == 0xF4) high_ = 0x8F;
    return Part::kIncomplete;
  }

  Part push_follower(uint8_t byte) {
    if (byte < low_ || byte > high_) return Part::kInvalid;
    low_ = 0x80;
    high_ = 0xBF;
    --n_missing_;
    value_ = value_ << 6 | (byte & 0x3Fu);
    return n_missing_ == 0 ? Part::kWhole : Part::kIncomplete;
  }

  Part whole(uint32_t value) {
    value_ = value;
    return Part::kWhole;
  }

  // The character if `next` comes next and `rest` fills all followers after it.
  uint32_t spread(uint8_t next, uint32_t rest) const {
    uint32_t value = value_ << 6 | (next & 0x3Fu);
    for (int i = 1; i < n_missing_; ++i) value = value << 6 | rest;
    return value;
  }

  uint32_t value_ = 0;
  int n_missing_ = 0;
  uint8_t low_ = 0x80;  // of the next follower
  uint8_t high_ = 0xBF;
};

}  // namespace corosrv
