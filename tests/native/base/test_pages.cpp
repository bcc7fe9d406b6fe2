#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/pages.h"
#include "check.h"

namespace corosrv {
namespace {

constexpr size_t kPages = 6;

// Pages that are full of ones.
class Pages {
 public:
  Pages() : size_(kPages * page_size()) {
    void* const mapped = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    begin_ = static_cast<char*>(mapped);
    std::fill_n(begin_, size_, '\1');
  }
  ~Pages() { ::munmap(begin_, size_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  char* begin() const { return begin_; }
  char* end() const { return begin_ + size_; }

  // Returns which pages take memory.
  std::vector<bool> are_there() const {
    std::vector<unsigned char> found(kPages);
    REQUIRE(::mincore(begin_, size_, found.data()) == 0);
    std::vector<bool> there;
    for (const unsigned char page : found) there.push_back((page & 1) != 0);
    return there;
  }

 private:
  const size_t size_;
  char* begin_ = nullptr;
};

void check_zeros(const Pages& pages, const char* begin, const char* end) {
  CHECK(std::all_of(static_cast<const char*>(pages.begin()), begin, [](char byte) { return byte == 1; }));
  CHECK(std::all_of(begin, end, [](char byte) { return byte == 0; }));
  CHECK(std::all_of(end, static_cast<const char*>(pages.end()), [](char byte) { return byte == 1; }));
}

TEST("a range is filled with zeros to the byte, and its whole pages take no memory") {
  const Pages pages;
  char* const begin = pages.begin() + page_size() + 1;
  char* const end = pages.end() - page_size() - 1;

  fill_with_zeros(begin, end);

  CHECK(pages.are_there() == std::vector<bool>({true, true, false, false, true, true}));
  check_zeros(pages, begin, end);
}

TEST("a range that begins and ends with pages is filled with zeros, and so is one without a whole page") {
  const Pages whole, small;

  fill_with_zeros(whole.begin() + page_size(), whole.end() - page_size());
  fill_with_zeros(small.begin() + 7, small.begin() + page_size() + 9);

  check_zeros(whole, whole.begin() + page_size(), whole.end() - page_size());
  check_zeros(small, small.begin() + 7, small.begin() + page_size() + 9);
}

TEST("locked memory, which cannot be given back, is filled with zeros as well") {
  const Pages pages;
  if (::mlock(pages.begin(), kPages * page_size()) != 0) return;  // more than this machine lets anybody lock

  fill_with_zeros(pages.begin() + 1, pages.end() - 1);

  check_zeros(pages, pages.begin() + 1, pages.end() - 1);
}

}  // namespace
}  // namespace corosrv
