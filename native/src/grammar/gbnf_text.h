// The characters of a GBNF text, and what is wrong with them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace corosrv {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

inline bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-'; }

inline bool is_line_end(char c) { return c == '\n' || c == '\r'; }

// A place in the text. The first refusal is kept and moves to the end of the text, so that every loop that reads it
// ends by itself; what is built after that is to be thrown away.
class GbnfText {
 public:
  // Refuses what is longer, and what is not UTF-8 or has a NUL in it. `text` outlives this.
  GbnfText(std::string_view text, size_t most_bytes);

  // Begins with line and column; empty: nothing was refused.
  const std::string& refusal() const { return refusal_; }
  void refuse(const std::string& what) { refuse_at(position_, what); }
  void refuse_at(size_t position, const std::string& what);

  bool is_at_end() const { return position_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; }
  size_t position() const { return position_; }
  void advance() { ++position_; }
  bool skip(std::string_view expected) {
    if (text_.substr(std::min(position_, text_.size()), expected.size()) != expected) return false;
    position_ += expected.size();
    return true;
  }
  void expect(std::string_view expected, const std::string& what) {
    if (!skip(expected)) refuse(what + ", not " + shown());
  }
  // Blanks and comments; `over_lines`: line ends too.
  void skip_space(bool over_lines);

  // What stands here, for a sentence.
  std::string shown() const;

  // A character of a literal or a set, perhaps an escape.
  uint32_t parse_char();
  // Letters, digits and '-', perhaps none.
  std::string_view parse_name();

 private:
  void check(size_t most_bytes);
  uint32_t parse_escape();
  uint32_t parse_hex(int digits);

  const std::string_view text_;
  size_t position_ = 0;
  std::string refusal_;
};

}  // namespace corosrv
