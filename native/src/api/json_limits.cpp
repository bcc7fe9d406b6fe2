#include "api/json_limits.h"

#include <vector>

namespace corosrv {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads a text once, from left to right.
class Scan {
 public:
  Scan(std::string_view text, const corosrv_json_limits& limits) : text_(text), limits_(limits) {}

  JsonFault run() {
    while (at_ < text_.size() && fault_ == COROSRV_JSON_FINE) step(text_[at_]);
    return {fault_, at_};
  }

 private:
  void step(char c) {
    switch (c) {
      case '"':
        skip_string();
        return count(n_values_, limits_.values, COROSRV_JSON_VALUES);
      case '[':
      case '{':
        keys_.push_back(0);
        if (keys_.size() > limits_.depth) fault_ = COROSRV_JSON_DEPTH;
        break;
      case ']':
      case '}':
        if (!keys_.empty()) keys_.pop_back();
        break;
      case ':':
        if (!keys_.empty()) count(keys_.back(), limits_.keys, COROSRV_JSON_KEYS);
        break;
      case ',':
        count(n_values_, limits_.values, COROSRV_JSON_VALUES);
        break;
      default:
        if (is_digit(c)) return read_number();
    }
    ++at_;
  }

  void count(size_t& n, size_t most, corosrv_json_fault kind) {
    if (++n > most) fault_ = kind;
  }

  // To behind the closing quote.
  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }

  size_t skip_digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ - begin;
  }

  // To behind the number, whose sign is behind us. Its digits are counted before and behind the point alike, and the
  // exponent may be as large as a number of so many digits.
  void read_number() {
    size_t n_digits = skip_digits();
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      n_digits += skip_digits();
    }
    const size_t exponent = read_exponent();
    if (n_digits > limits_.digits || exponent > limits_.digits) fault_ = COROSRV_JSON_DIGITS;
  }

  size_t read_exponent() {
    if (at_ == text_.size() || (text_[at_] != 'e' && text_[at_] != 'E')) return 0;
    ++at_;
    const bool is_negative = at_ < text_.size() && text_[at_] == '-';
    if (at_ < text_.size() && (is_negative || text_[at_] == '+')) ++at_;
    size_t exponent = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      if (exponent <= limits_.digits) exponent = 10 * exponent + static_cast<size_t>(text_[at_] - '0');
    }
    return is_negative ? 0 : exponent;  // what is too small is 0
  }

  const std::string_view text_;
  const corosrv_json_limits& limits_;
  size_t at_ = 0;
  size_t n_values_ = 0;
  std::vector<size_t> keys_;  // of each open bracket
  corosrv_json_fault fault_ = COROSRV_JSON_FINE;
};

}  // namespace

JsonFault find_json_fault(std::string_view text, const corosrv_json_limits& limits) { return Scan(text, limits).run(); }

}  // namespace corosrv
