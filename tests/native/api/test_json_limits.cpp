#include <string>

#include "api/json_limits.h"
#include "check.h"

namespace corosrv {
namespace {

constexpr corosrv_json_limits kLimits = {3, 4, 5, 20};  // depth, keys, digits, values

corosrv_json_fault fault(const std::string& text) { return find_json_fault(text, kLimits).kind; }

std::string repeated(const std::string& text, size_t n) {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += text;
  return all;
}

TEST("a text is nested too deeply one bracket behind the limit, wherever it stands") {
  CHECK_EQ(fault("[[[1]]]"), COROSRV_JSON_FINE);
  CHECK_EQ(fault("[[[[1]]]]"), COROSRV_JSON_DEPTH);
  CHECK_EQ(fault(R"({"a":[{"b":[1]}]})"), COROSRV_JSON_DEPTH);
  CHECK_EQ(fault("[[[]],[[]],[[]]]"), COROSRV_JSON_FINE);
  CHECK_EQ(find_json_fault("[[[[", kLimits).at, size_t{4});
}

TEST("keys are counted for each object by itself") {
  CHECK_EQ(fault(R"({"a":1,"b":2,"c":3,"d":4})"), COROSRV_JSON_FINE);
  CHECK_EQ(fault(R"({"a":1,"a":1,"a":1,"a":1,"a":1})"), COROSRV_JSON_KEYS);
  CHECK_EQ(fault(R"({"a":{"b":1,"c":1,"d":1},"e":{"f":1,"g":1,"h":1},"i":1})"), COROSRV_JSON_FINE);
  CHECK_EQ(fault(R"({"x":[{"a":1,"b":2,"c":3,"d":4,"e":5}]})"), COROSRV_JSON_KEYS);
}

TEST("what stands in a string is text") {
  CHECK_EQ(fault(R"(["[[[[", ":::::::", "123456789"])"), COROSRV_JSON_FINE);
  CHECK_EQ(fault(R"(["\"[[[[\\", "\\\"]"])"), COROSRV_JSON_FINE);
  CHECK_EQ(fault(R"(["\\",[[[1]]]])"), COROSRV_JSON_DEPTH);
}

TEST("a number has so many digits on both sides of its point, and no larger exponent") {
  CHECK_EQ(fault("[12345]"), COROSRV_JSON_FINE);
  CHECK_EQ(fault("[-12.345]"), COROSRV_JSON_FINE);
  CHECK_EQ(fault("[123456]"), COROSRV_JSON_DIGITS);
  CHECK_EQ(fault("[1.23456]"), COROSRV_JSON_DIGITS);
  CHECK_EQ(fault("[1e5]"), COROSRV_JSON_FINE);
  CHECK_EQ(fault("[1E+5]"), COROSRV_JSON_FINE);
  CHECK_EQ(fault("[1e6]"), COROSRV_JSON_DIGITS);
  CHECK_EQ(fault("[1e-999]"), COROSRV_JSON_FINE);
  CHECK_EQ(fault("[1e" + std::string(100, '9') + "]"), COROSRV_JSON_DIGITS);
}

TEST("values are counted in all") {
  CHECK_EQ(fault("[" + repeated("1,", 20) + "1]"), COROSRV_JSON_FINE);
  CHECK_EQ(fault("[" + repeated("1,", 21) + "1]"), COROSRV_JSON_VALUES);
  CHECK_EQ(fault(R"({"a":[)" + repeated("[],", 21) + "[]]}"), COROSRV_JSON_VALUES);
}

TEST("a text that is no JSON is read to its end, and no further") {
  for (const char* text : {"", "\"", "\"\\", "[\"\\", "1", "1.", "1e", "1e-", "]]]]", "}:,", ":", "\\\"", "\xff\xfe"}) {
    CHECK_EQ(fault(text), COROSRV_JSON_FINE);
  }
}

}  // namespace
}  // namespace corosrv
