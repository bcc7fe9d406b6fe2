// Which texts belong to a grammar. Reads requests from standard input: a grammar, a count, and as many texts, each as
// its size in bytes, a line end and the bytes. Writes a line for each: a letter for each text, or why the grammar is
// refused.
#include <iostream>
#include <memory>
#include <string>

#include "grammar/gbnf.h"
#include "grammar/recognizer.h"

namespace corosrv {
namespace {

constexpr uint64_t kMaxWork = 4'000'000;  // for each byte

bool read_block(std::string& block) {
  size_t size = 0;
  if (!(std::cin >> size)) return false;
  std::cin.ignore();
  block.resize(size);
  return static_cast<bool>(std::cin.read(block.data(), static_cast<std::streamsize>(size)));
}

// 'y' belongs, 'b' is the beginning of one that does, 'n' neither, 's' takes too long.
char verdict(const std::shared_ptr<const Program>& program, const std::string& text) {
  Recognizer recognizer(program);
  recognizer.limit_work(kMaxWork);
  for (const char byte : text) {
    if (!recognizer.push(static_cast<uint8_t>(byte))) return recognizer.is_overworked() ? 's' : 'n';
    recognizer.commit();
    recognizer.reset_work();
  }
  return recognizer.is_complete() ? 'y' : 'b';
}

void answer() {
  std::string grammar, count, text, verdicts;
  while (read_block(grammar) && read_block(count)) {
    auto program = std::make_shared<Program>();
    const Status status = compile_gbnf(grammar, *program);
    verdicts.clear();
    for (size_t left = std::stoul(count); left > 0 && read_block(text); --left) {
      if (status.is_ok()) verdicts += verdict(program, text);
    }
    std::cout << (status.is_ok() ? verdicts : status.message()) << std::endl;
  }
}

}  // namespace
}  // namespace corosrv

int main() { corosrv::answer(); }
