// Any text as a grammar: refused in words, or followed in bounded work.
#include "fuzz.h"
#include "grammar/gbnf.h"
#include "grammar/recognizer.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace corosrv;
  auto program = std::make_shared<Program>();
  const Status status = compile_gbnf({reinterpret_cast<const char*>(data), size}, *program);
  if (!status.is_ok()) {
    require(status.message().rfind("line ", 0) == 0, "a refusal begins with its place");
    return 0;
  }
  Recognizer recognizer(program);
  recognizer.limit_work(200'000);
  for (size_t i = 0; i < size && recognizer.push(data[i]); ++i) {
    if (i % 7 == 3) recognizer.commit();
  }
  recognizer.pop_to(0);
  return 0;
}
