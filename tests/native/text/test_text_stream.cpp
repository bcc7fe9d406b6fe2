#include "check.h"
#include "text/text_stream.h"

namespace corosrv {
namespace {

#define R "\xEF\xBF\xBD"  // U+FFFD

// Pushes `bytes` cut at the places where `cuts` has a bit.
std::string push_cut(const std::string& bytes, uint32_t cuts) {
  TextStream stream;
  std::string text;
  std::string piece;
  for (size_t i = 0; i < bytes.size(); ++i) {
    piece += bytes[i];
    if ((cuts >> i & 1u) == 0) continue;
    text += stream.push(piece);
    piece.clear();
  }
  return text + stream.push(piece);
}

void check_every_cut(const std::string& bytes, const std::string& expected) {
  for (uint32_t cuts = 0; cuts < 1u << bytes.size(); ++cuts) CHECK_EQ(push_cut(bytes, cuts), expected);
}

TEST("text does not depend on how its bytes are cut into pieces") {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8Az\xCE\xA9";

  check_every_cut(text, text);
}

TEST("a character is given out with its last byte and not before") {
  TextStream stream;

  CHECK_EQ(stream.push("x\xF0"), "x");
  CHECK_EQ(stream.push("\x9F\x8C"), "");
  CHECK_EQ(stream.push(""), "");
  CHECK_EQ(stream.push("\x8Ay"), "\xF0\x9F\x8C\x8Ay");
}

// What bytes.decode(errors="replace") of Python 3 gives.
TEST("invalid bytes turn into replacement characters as in Python, however they are cut") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"\x80", R},                                // a follower alone
      {"\xBF\xBF", R R},                          //
      {"\xC0\xAF", R R},                          // overlong: two bytes,
      {"\xC1\xBF", R R},                          //
      {"\xE0\x80\xAF", R R R},                    // three,
      {"\xE0\x9F\xBF", R R R},                    //
      {"\xF0\x80\x80\xAF", R R R R},              // four
      {"\xF0\x8F\xBF\xBF", R R R R},              //
      {"\xED\xA0\x80", R R R},                    // surrogates
      {"\xED\xBF\xBF", R R R},                    //
      {"\xED\xA0\xBD\xED\xB8\x80", R R R R R R},  // a pair of them
      {"\xF4\x90\x80\x80", R R R R},              // above U+10FFFF
      {"\xF5\x80\x80\x80", R R R R},              //
      {"\xF8\x88\x80\x80\x80", R R R R R},        //
      {"\xFE", R},                                // never a lead
      {"\xFF\xFF", R R},                          //
      {"\xC3", R},                                // truncated, before the x below
      {"\xE2\x82", R},                            //
      {"\xE0\xA0", R},                            //
      {"\xF0\x9F\x8C", R},                        //
      {"\xF4\x8F\xBF", R},                        //
      {"\xE2\xE2\x82\xAC", R "\xE2\x82\xAC"},     // truncated by another lead
      {"\xF0\x9F\xC3\xA9", R "\xC3\xA9"},         //
      {"\xF0\x9F\x8C\xFF", R R},                  // truncated by a byte that is no lead
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", R R R R},
  };

  for (const auto& [bytes, expected] : table) check_every_cut(bytes + "x", expected + "x");
}

TEST("the outermost characters of each length are valid") {
  const std::vector<std::string> characters = {
      std::string(1, '\0'), "\x7F",         "\xC2\x80",     "\xDF\xBF",         "\xE0\xA0\x80",
      "\xED\x9F\xBF",       "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"};

  for (const std::string& character : characters) check_every_cut(character + "x", character + "x");
}

TEST("a character that is incomplete at the end is dropped") {
  for (const char* truncated : {"\xC3", "\xE2\x82", "\xF0\x9F\x8C"}) {
    TextStream stream;

    CHECK_EQ(stream.push(std::string("end") + truncated), "end");
    CHECK_EQ(stream.push(""), "");
  }
}

}  // namespace
}  // namespace corosrv
