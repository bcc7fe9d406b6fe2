// Stands in for libFuzzer where there is no clang: the corpus, and seeded random changes of it, for so many seconds.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<std::string> corpus{""};
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const auto call = [](const std::string& text) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  for (const std::string& text : corpus) call(text);
  std::mt19937 random(1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::stod(argv[2]));
  while (std::chrono::steady_clock::now() < end) {
    std::string text = corpus[random() % corpus.size()];
    const std::string& other = corpus[random() % corpus.size()];
    for (auto n = random() % 8; n > 0; --n) {
      const size_t at = random() % (text.size() + 1);
      if (random() % 3 == 0) text.insert(at, other.substr(random() % (other.size() + 1), random() % 16));
      if (random() % 3 == 0) text.insert(at, 1, static_cast<char>(random()));
      if (random() % 3 == 0) text.erase(at, random() % 4);
    }
    call(text);
  }
  return 0;
}
