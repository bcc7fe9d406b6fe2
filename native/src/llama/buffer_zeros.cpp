#include "llama/buffer_zeros.h"

#include <elf.h>
#include <ggml-backend.h>
#include <link.h>
#include <llama.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

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

// The functions and data that a library imports, as the loader has found them.
class Imports {
 public:
  explicit Imports(const dl_phdr_info& library) : library_(library) {
    for (int i = 0; i < library.dlpi_phnum; ++i) {
      const ElfW(Phdr) & segment = library.dlpi_phdr[i];
      if (segment.p_type != PT_DYNAMIC) continue;
      const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + segment.p_vaddr);
      for (; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag <= DT_JMPREL) values_[entry->d_tag] = entry->d_un.d_val;
      }
    }
  }

  // Lets the library call another function instead of the one of this name.
  void replace(const char* name, const void* function) const {
    if (values_[DT_SYMTAB] == 0 || values_[DT_STRTAB] == 0) return;
    replace_in(DT_JMPREL, DT_PLTRELSZ, name, function);
    replace_in(DT_RELA, DT_RELASZ, name, function);
  }

 private:
  void replace_in(int list, int n_bytes, const char* name, const void* function) const {
    const auto* const entries = at<ElfW(Rela)>(list);
    const size_t n_entries = values_[list] == 0 ? 0 : values_[n_bytes] / sizeof(ElfW(Rela));
    for (size_t i = 0; i < n_entries; ++i) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entries[i].r_info));
      if (type != kAddressTypes[0] && type != kAddressTypes[1]) continue;
      const ElfW(Sym) & symbol = at<ElfW(Sym)>(DT_SYMTAB)[ELF64_R_SYM(entries[i].r_info)];
      if (std::strcmp(at<char>(DT_STRTAB) + symbol.st_name, name) == 0) {
        write(library_.dlpi_addr + entries[i].r_offset, function);
      }
    }
  }

  // Some loaders write the address into the entry, others leave how far it lies behind the library's begin.
  template <typename T>
  const T* at(int tag) const {
    const ElfW(Addr) address = values_[tag];
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
  ElfW(Xword) values_[DT_JMPREL + 1] = {};  // of its dynamic section, by their tags
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
