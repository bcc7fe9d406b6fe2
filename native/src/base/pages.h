// Memory that is given back to the system while its addresses stay in use, and memory in large pages.
#pragma once

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

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
