// Memory that is given back to the system while its addresses stay in use, and memory in large pages.
#pragma once

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace corosrv {

inline size_t page_size() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

// Gives back the pages that lie in [begin, end) as a whole. Whoever reads them next finds zeros or, where a file is
// mapped, the file again. Memory that is locked stays.
inline void give_back_pages(const void* begin, const void* end) {
  const uintptr_t size = page_size();
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + size - 1) / size * size;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / size * size;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

// Fills [begin, end) of a process's own memory with zeros. Of whole pages it takes none: it gives back those that are
// there, if they are not locked.
inline void fill_with_zeros(char* begin, char* end) {
  const uintptr_t size = page_size();
  char* const first = begin + (size - reinterpret_cast<uintptr_t>(begin) % size) % size;
  char* const last = end - reinterpret_cast<uintptr_t>(end) % size;
  if (first >= last || ::madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED) != 0) {
    std::memset(begin, 0, static_cast<size_t>(end - begin));
    return;
  }
  std::memset(begin, 0, static_cast<size_t>(first - begin));
  std::memset(last, 0, static_cast<size_t>(end - last));
}

constexpr size_t kHugePage = 2 << 20;  // of x86-64, and of Arm with its usual pages

// Asks for huge pages where whole ones lie in [begin, end), which nobody has written yet: the processor then translates
// fewer addresses. The system may have none.
inline void use_huge_pages(const void* begin, const void* end) {
#ifdef MADV_HUGEPAGE
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / kHugePage * kHugePage;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// Gives back what was freed and malloc still keeps. Takes milliseconds, for which other threads may wait to allocate.
inline void give_back_freed() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace corosrv
