#include "llama/buffer_zeros.h"

#include <elf.h>
#include <ggml-backend.h>
#include <link.h>
#include <llama.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "base/pages.h"

namespace corosrv {

namespace {

constexpr size_t kLeastBytes = 1 << 20;  // less is overwritten sooner than it is given back

// Of the entries that hold an address.
#if defined(__x86_64__)
constexpr uint32_t kAddressTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#elif defined(__aarch64__)
constexpr uint32_t kAddressTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#else
constexpr uint32_t kAddressTypes[] = {UINT32_MAX, UINT32_MAX};
#endif

// What libllama calls in place of ggml_backend_buffer_clear().
void clear_buffer(ggml_backend_buffer_t buffer, uint8_t value) {
  const size_t size = ggml_backend_buffer_get_size(buffer);
  if (value != 0 || size < kLeastBytes || ggml_backend_buffer_get_type(buffer) != ggml_backend_cpu_buffer_type()) {
    ggml_backend_buffer_clear(buffer, value);
    return;
  }
  auto* const begin = static_cast<char*>(ggml_backend_buffer_get_base(buffer));
  fill_with_zeros(begin, begin + size);
}

// Returns whether an address lies in a segment of this type.
bool contains(const dl_phdr_info& library, ElfW(Word) type, ElfW(Addr) address) {
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = library.dlpi_phdr[i];
    const ElfW(Addr) begin = library.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == type && address >= begin && address < begin + segment.p_memsz) return true;
  }
  return false;
}

// What a list of import entries begins with, and how many bytes it has.
struct ImportList {
  const ElfW(Rela) * first = nullptr;
  size_t n_bytes = 0;
};

// The functions and data that a library imports, as the loader has found them.
class Imports {
 public:
  explicit Imports(const dl_phdr_info& library) : library_(library) {
    for (int i = 0; i < library.dlpi_phnum; ++i) {
      const ElfW(Phdr) & segment = library.dlpi_phdr[i];
      if (segment.p_type == PT_DYNAMIC) read(reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + segment.p_vaddr));
    }
  }

  // Lets the library call another function instead of the one of this name.
  void replace(const char* name, const void* function) const {
    if (symbols_ == nullptr || names_ == nullptr) return;
    for (const ImportList& list : {calls_, others_}) {
      for (size_t i = 0; list.first != nullptr && i < list.n_bytes / sizeof(ElfW(Rela)); ++i) {
        const ElfW(Rela) & entry = list.first[i];
        const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
        if (type != kAddressTypes[0] && type != kAddressTypes[1]) continue;
        if (std::strcmp(names_ + symbols_[ELF64_R_SYM(entry.r_info)].st_name, name) == 0) {
          write(library_.dlpi_addr + entry.r_offset, function);
        }
      }
    }
  }

 private:
  void read(const ElfW(Dyn) * entry) {
    for (; entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols_ = at<ElfW(Sym)>(entry->d_un.d_ptr);
          break;
        case DT_STRTAB:
          names_ = at<char>(entry->d_un.d_ptr);
          break;
        case DT_JMPREL:
          calls_.first = at<ElfW(Rela)>(entry->d_un.d_ptr);
          break;
        case DT_PLTRELSZ:
          calls_.n_bytes = entry->d_un.d_val;
          break;
        case DT_RELA:
          others_.first = at<ElfW(Rela)>(entry->d_un.d_ptr);
          break;
        case DT_RELASZ:
          others_.n_bytes = entry->d_un.d_val;
          break;
        default:
          break;
      }
    }
  }

  // Some loaders write the address into the entry, others leave how far it lies behind the library's begin.
  template <typename T>
  const T* at(ElfW(Addr) address) const {
    return reinterpret_cast<const T*>(address < library_.dlpi_addr ? library_.dlpi_addr + address : address);
  }

  // Where the loader has found all functions at once, it has made the page read-only: so it is again.
  void write(ElfW(Addr) place, const void* function) const {
    void* const page = reinterpret_cast<void*>(place - place % page_size());
    if (::mprotect(page, page_size(), PROT_READ | PROT_WRITE) != 0) return;
    __atomic_store_n(reinterpret_cast<const void**>(place), function, __ATOMIC_RELEASE);
    if (contains(library_, PT_GNU_RELRO, place)) ::mprotect(page, page_size(), PROT_READ);
  }

  const dl_phdr_info& library_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  ImportList calls_, others_;
};

int replace_in_libllama(dl_phdr_info* library, size_t, void*) {
  if (!contains(*library, PT_LOAD, reinterpret_cast<ElfW(Addr)>(&llama_init_from_model))) return 0;
  Imports(*library).replace("ggml_backend_buffer_clear", reinterpret_cast<const void*>(&clear_buffer));
  return 1;  // the search ends
}

}  // namespace

void fill_buffers_without_memory() {
  [[maybe_unused]] static const int once = ::dl_iterate_phdr(&replace_in_libllama, nullptr);
}

}  // namespace corosrv
