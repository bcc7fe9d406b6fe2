// Bytes of tokens to whole UTF-8 characters.
#pragma once

#include <string>
#include <string_view>

namespace corosrv {

// Tokens may end inside a character: its bytes wait here until it is whole. Bytes that can never become a character
// are given out as U+FFFD, one for each maximal part of a sequence as the Unicode standard recommends; a character
// that is still incomplete at the end is dropped with the object.
class TextStream {
 public:
  // The text that `bytes` completes, perhaps none. Valid UTF-8.
  std::string push(std::string_view bytes);

  // No character has been begun and not ended.
  bool is_between() const { return incomplete_.empty(); }

 private:
  std::string incomplete_;  // a proper prefix of one valid character, at most three bytes
};

}  // namespace corosrv
