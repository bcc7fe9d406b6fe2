// A test harness of one page. A test is a sentence that is false when it fails:
//
//   TEST("two and two are four") { CHECK_EQ(2 + 2, 4); }
//
// CHECK goes on after a failure, REQUIRE leaves the test; both may be used in any thread of a test but REQUIRE, which
// throws and belongs into the test's own thread.
#pragma once

#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace check {

struct Registered {
  Registered(const char* sentence, const char* file, void (*run)());
};
struct Abandoned {};  // thrown by REQUIRE

// Notes a failure of the running test. Any thread.
void fail(const char* file, int line, const std::string& what);

template <typename T, typename = void>
struct IsPrintable : std::false_type {};
template <typename T>
struct IsPrintable<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<const T&>())>>
    : std::true_type {};

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (IsPrintable<T>::value) {
    out << value;
  } else {
    out << "(no words for this type)";
  }
  return out.str();
}

template <typename T>
std::string show(const std::vector<T>& values) {
  std::string shown = "{";
  for (const auto& value : values) shown += (shown.size() > 1 ? ", " : "") + show(value);
  return shown + "}";
}

template <typename A, typename B>
bool equal(const A& a, const B& b, const char* words, const char* file, int line) {
  if (a == b) return true;
  fail(file, line, std::string(words) + ": " + show(a) + " is not " + show(b));
  return false;
}

}  // namespace check

#define CHECK_JOIN_(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN_(a, b)
#define TEST(sentence)                                                                                   \
  static void CHECK_JOIN(test_at_, __LINE__)();                                                          \
  static const ::check::Registered CHECK_JOIN(registered_at_, __LINE__)(sentence, __FILE__,              \
                                                                        CHECK_JOIN(test_at_, __LINE__)); \
  static void CHECK_JOIN(test_at_, __LINE__)()
#define CHECK(...) ((__VA_ARGS__) ? (void)0 : ::check::fail(__FILE__, __LINE__, #__VA_ARGS__))
#define CHECK_EQ(a, b) (void)::check::equal(a, b, #a " == " #b, __FILE__, __LINE__)
#define REQUIRE(...) \
  ((__VA_ARGS__) ? (void)0 : (::check::fail(__FILE__, __LINE__, #__VA_ARGS__), throw ::check::Abandoned()))
