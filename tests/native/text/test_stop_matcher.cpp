#include <algorithm>
#include <random>

#include "check.h"
#include "text/stop_matcher.h"

namespace corosrv {
namespace {

using Strings = std::vector<std::string>;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The text before the stop string that is complete first, the longest of those complete there; all when there is none.
struct Reference {
  std::string text;
  bool has_matched = false;

  Reference(const std::string& pushed, const Strings& stops) : text(pushed) {
    for (size_t end = 1; end <= pushed.size() && !has_matched; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops) {
        if (ends_with(pushed.substr(0, end), stop)) longest = std::max(longest, stop.size());
      }
      has_matched = longest > 0;
      if (has_matched) text = pushed.substr(0, end - longest);
    }
  }
};

// The longest end of `text` that a stop string begins with.
size_t longest_beginning(const std::string& text, const Strings& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t size = 1; size < stop.size(); ++size) {
      if (ends_with(text, stop.substr(0, size))) longest = std::max(longest, size);
    }
  }
  return longest;
}

// Few letters, so that stop strings overlap each other and themselves.
std::string random_text(std::mt19937& random, size_t least, size_t most) {
  std::string text(least + random() % (most - least + 1), ' ');
  for (char& letter : text) letter = "aab"[random() % 3];
  return text;
}

TEST("any cut of any text stops where a naive search stops") {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    Strings stops(1 + random() % 3);
    for (std::string& stop : stops) stop = random_text(random, 1, 6);
    const std::string text = random_text(random, 0, 24);
    const Reference expected(text, stops);

    StopMatcher matcher(stops);
    std::string given;
    for (size_t at = 0; at < text.size() && !matcher.has_matched();) {
      const size_t size = random() % 4;
      given += matcher.push(text.substr(at, size));
      at += std::min(size, text.size() - at);
      if (matcher.has_matched()) break;
      // Nothing of a stop string leaks, and nothing else is held back.
      const std::string pushed = text.substr(0, at);
      CHECK_EQ(given, pushed.substr(0, at - longest_beginning(pushed, stops)));
    }
    given += matcher.flush();

    CHECK_EQ(given, expected.text);
    CHECK_EQ(matcher.has_matched(), expected.has_matched);
  }
}

TEST("the stop string that is complete first wins, also over one that began earlier") {
  StopMatcher matcher({"abcdef", "cd"});

  CHECK_EQ(matcher.push("xabcdef"), "xab");
  CHECK(matcher.has_matched());
}

TEST("the longest of the stop strings that end together wins") {
  StopMatcher matcher({"c", "abc", "bc"});

  CHECK_EQ(matcher.push("xabc"), "x");
}

TEST("a stop string is found across pushes and never shows") {
  StopMatcher matcher({"<end>"});

  CHECK_EQ(matcher.push("one <"), "one ");
  CHECK_EQ(matcher.push("en"), "");
  CHECK_EQ(matcher.push("d> two"), "");
  CHECK(matcher.has_matched());
  CHECK_EQ(matcher.flush(), "");
}

TEST("flush gives what was held back in vain, once") {
  StopMatcher matcher({"<end>"});

  CHECK_EQ(matcher.push("one <en"), "one ");
  CHECK_EQ(matcher.flush(), "<en");
  CHECK_EQ(matcher.flush(), "");
  CHECK(!matcher.has_matched());
}

TEST("an empty push does not release what is held back") {
  StopMatcher matcher({"ab"});

  CHECK_EQ(matcher.push("a"), "");
  CHECK_EQ(matcher.push(""), "");
  CHECK_EQ(matcher.push("b"), "");
  CHECK(matcher.has_matched());
}

TEST("without stop strings text passes as it is") {
  StopMatcher matcher({});

  CHECK_EQ(matcher.push("anything"), "anything");
  CHECK_EQ(matcher.flush(), "");
}

}  // namespace
}  // namespace corosrv
