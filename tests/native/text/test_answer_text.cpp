#include "check.h"
#include "sampling/random.h"
#include "text/answer_text.h"

namespace corosrv {
namespace {

TokenList told_of(const std::string& piece) {
  TokenList told;
  told.add(7, -1.0f, piece, 1);
  told.add_other(8, -2.0f, "other");
  return told;
}

// What leaves: the text, and the pieces of the tokens that were told of with it.
struct Sent {
  std::string text;
  std::vector<std::string> pieces;

  void note(std::string more, const TokenList& tokens) {
    text += more;
    size_t begin = 0;
    for (const auto& entry : tokens.entries()) {
      const auto size = static_cast<size_t>(entry.piece_size);
      if (entry.token == 7) pieces.push_back(tokens.pieces().substr(begin, size));
      begin += size;
    }
  }
  std::string joined() const {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    return all;
  }
};

Sent send(const std::vector<std::string>& pieces, const std::vector<std::string>& stops = {}) {
  AnswerText answer(stops);
  Sent sent;
  for (const std::string& piece : pieces) {
    std::string text = answer.push(piece, told_of(piece));
    sent.note(std::move(text), answer.take_tokens());
    if (answer.has_stopped()) break;
  }
  std::string text = answer.flush();
  sent.note(std::move(text), answer.take_tokens());
  return sent;
}

using Pieces = std::vector<std::string>;

TEST("a token leaves with its text") {
  AnswerText answer({});
  CHECK_EQ(answer.push("one", told_of("one")), "one");
  CHECK_EQ(answer.take_tokens().pieces(), "oneother");
  CHECK(answer.take_tokens().is_empty());
}

TEST("a token that ends inside a character leaves with the character's end") {
  AnswerText answer({});
  CHECK_EQ(answer.push("a\xF0\x9F", told_of("a\xF0\x9F")), "a");
  CHECK(answer.take_tokens().is_empty());
  CHECK_EQ(answer.push("\x8C\x8A!", told_of("\x8C\x8A!")), "\xF0\x9F\x8C\x8A!");
  CHECK_EQ(answer.take_tokens().entries().size(), size_t{4});
}

TEST("tokens that may begin a stop string leave when they do not") {
  AnswerText answer({"stop"});
  CHECK_EQ(answer.push("s", told_of("s")), "");
  CHECK_EQ(answer.push("to", told_of("to")), "");
  CHECK(answer.take_tokens().is_empty());
  CHECK_EQ(answer.push("w", told_of("w")), "stow");
  CHECK_EQ(answer.take_tokens().entries().size(), size_t{6});
}

TEST("of a token that a stop string cuts the bytes before it are told of, and of those behind nothing") {
  const Sent sent = send({"ab", "cd", "ef", "gh"}, {"de"});

  CHECK_EQ(sent.text, "abc");
  CHECK_EQ(sent.pieces, (Pieces{"ab", "c"}));
  CHECK_EQ(send({"ab", "cd"}, {"cd"}).pieces, (Pieces{"ab"}));
  CHECK_EQ(send({"abcd"}, {"ab"}).pieces, Pieces{});
}

TEST("the stop string that ended the text is known") {
  AnswerText answer({"x", "cd", "d"});
  answer.push("abcd", {});

  REQUIRE(answer.has_stopped());
  CHECK_EQ(answer.stopping_word(), "cd");
}

TEST("a text that ends inside a character loses its bytes and none of its tokens") {
  const Sent sent = send({"ab", "c\xF0\x9F", "\x8C"});

  CHECK_EQ(sent.text, "abc");
  CHECK_EQ(sent.pieces, (Pieces{"ab", "c", ""}));
}

TEST("a token without text is told of like any other") {
  CHECK_EQ(send({"a", "", "b", ""}).pieces, (Pieces{"a", "", "b", ""}));
}

TEST("however a text is cut into tokens, their bytes are the text") {
  const std::string text = "So \xC3\xA9t\xC3\xA9, stst\xF0\x9F\x8C\x8A stop sto";
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    Pieces pieces;
    for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(text.substr(at, static_cast<size_t>(random.next() * 5)));
      if (pieces.back().empty()) pieces.push_back(text.substr(at, 1));
    }
    for (const Pieces& stops : {Pieces{}, Pieces{"stop"}, Pieces{"\xC3\xA9", "op"}, Pieces{"stx"}}) {
      const Sent sent = send(pieces, stops);

      CHECK_EQ(sent.joined(), sent.text);
      CHECK_EQ(sent.text, text.substr(0, stops.empty() ? text.size() : text.find(stops[0])));
    }
  }
}

TEST("bytes that are no text become U+FFFD in it, and stay what they are in the tokens") {
  const Sent sent = send({"a\xFF", "\xC3", "b"});

  CHECK_EQ(sent.text,
           "a\xEF\xBF\xBD\xEF\xBF\xBD"
           "b");
  CHECK_EQ(sent.joined(),
           "a\xFF\xC3"
           "b");
}

}  // namespace
}  // namespace corosrv
