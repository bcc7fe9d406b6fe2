#include "grammar/gbnf_text.h"

#include "base/utf8.h"

namespace corosrv {

namespace {

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

GbnfText::GbnfText(std::string_view text, size_t most_bytes) : text_(text) { check(most_bytes); }

void GbnfText::refuse_at(size_t position, const std::string& what) {
  if (refusal_.empty()) {
    const std::string_view before = text_.substr(0, position);
    const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
    const std::string_view last = before.substr(before.find_last_of('\n') + 1);  // npos + 1 is 0
    const auto is_follower = [](char c) { return (c & 0xC0) == 0x80; };
    const size_t column = last.size() - static_cast<size_t>(std::count_if(last.begin(), last.end(), is_follower)) + 1;
    refusal_ = "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what;
  }
  position_ = text_.size();
}

std::string GbnfText::shown() const {
  if (is_at_end()) return "the end of the grammar";
  if (is_line_end(peek())) return "the end of the line";
  size_t size = 1;
  while (position_ + size < text_.size() && (text_[position_ + size] & 0xC0) == 0x80) ++size;
  return "'" + std::string(text_.substr(position_, size)) + "'";
}

void GbnfText::check(size_t most_bytes) {
  if (text_.size() > most_bytes) {
    refuse_at(0, "the grammar has " + std::to_string(text_.size()) + " bytes, and at most " +
                     std::to_string(most_bytes) + " are taken");
    return;
  }
  Utf8Decoder decoder;
  size_t first = 0;  // of the character
  for (size_t i = 0; i < text_.size(); ++i) {
    if (decoder.is_between()) first = i;
    if (text_[i] == '\0') return refuse_at(i, "a NUL byte; write \\x00 for the character");
    if (decoder.push(static_cast<uint8_t>(text_[i])) == Utf8Decoder::Part::kInvalid) {
      return refuse_at(first, "the text is not UTF-8");
    }
  }
  if (!decoder.is_between()) refuse_at(first, "the text is not UTF-8");
}

void GbnfText::skip_space(bool over_lines) {
  while (!is_at_end()) {
    if (peek() == '#') {
      while (!is_at_end() && !is_line_end(peek())) ++position_;
    } else if (peek() == ' ' || peek() == '\t' || (over_lines && is_line_end(peek()))) {
      ++position_;
    } else {
      return;
    }
  }
}

uint32_t GbnfText::parse_char() {
  if (peek() == '\\') return parse_escape();
  Utf8Decoder decoder;
  while (!is_at_end()) {
    if (decoder.push(static_cast<uint8_t>(text_[position_++])) == Utf8Decoder::Part::kWhole) break;
  }
  return decoder.code_point();
}

uint32_t GbnfText::parse_escape() {
  const size_t begin = position_++;
  const char c = peek();
  ++position_;
  switch (c) {
    case 'x':
      return parse_hex(2);
    case 'u':
      return parse_hex(4);
    case 'U':
      return parse_hex(8);
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'n':
      return '\n';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
      return static_cast<uint32_t>(c);
    default:
      refuse_at(begin, "the escape is none of \\t \\r \\n \\\\ \\\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH");
      return 0;
  }
}

uint32_t GbnfText::parse_hex(int digits) {
  const size_t begin = position_ - 2;
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const int digit = hex_value(peek());
    if (digit < 0) {
      refuse_at(begin, "the escape needs " + std::to_string(digits) + " hexadecimal digits");
      return 0;
    }
    value = value << 4 | static_cast<uint32_t>(digit);
    ++position_;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) refuse_at(begin, "the escape is no character");
  return value;
}

std::string_view GbnfText::parse_name() {
  const size_t begin = position_;
  while (is_word(peek())) ++position_;
  return text_.substr(begin, position_ - begin);
}

}  // namespace corosrv
