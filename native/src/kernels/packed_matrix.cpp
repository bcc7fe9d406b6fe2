#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cassert>
#include <type_traits>

#include "base/pages.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace corosrv {

const ProductKernels* best_products() {
  for (const auto products : {&avx512_bf16_products, &avx512_products, &avx_vnni_products}) {
    if (const ProductKernels* const kernels = products(); kernels != nullptr) return kernels;
  }
  return avx2_products();
}

bool has_amx() {
#if defined(__x86_64__)
  constexpr unsigned kAmxInt8 = 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxInt8) != 0;
#else
  return false;
#endif
}

std::unique_ptr<uint8_t[], PackedMatrix::Free> PackedMatrix::allocate(size_t bytes) {
  const auto alignment = std::align_val_t(bytes >= kHugePage ? kHugePage : kCacheLine);
  std::unique_ptr<uint8_t[], Free> data(new (alignment) uint8_t[bytes], Free{alignment});
  use_huge_pages(data.get(), data.get() + bytes);
  return data;
}

bool PackedMatrix::fits(BlockFormat format, size_t n_rows, size_t n_columns) {
  return n_rows > 0 && n_columns > 0 && n_rows % kGroupRows == 0 &&
         n_columns % (kBlockValues * layout_of(format).n_blocks) == 0;
}

PackedMatrix::PackedMatrix(const ProductKernels& kernels, BlockFormat format, const void* blocks, size_t n_rows,
                           size_t n_columns)
    : kernels_(kernels),
      format_(format),
      n_groups_(n_rows / kGroupRows),
      n_blocks_(n_columns / kBlockValues),
      group_bytes_(layout_of(format).group(n_blocks_)),
      data_(allocate(n_groups_ * group_bytes_)) {
  assert(fits(format, n_rows, n_columns));
  const PackedLayout layout = layout_of(format);
  const size_t group_bytes = kGroupRows * n_blocks_ / layout.n_blocks * layout.bytes;
  const auto* rows = static_cast<const uint8_t*>(blocks);
  for (size_t g = 0; g < n_groups_; ++g) {
    pack_group(format, rows + g * group_bytes, n_blocks_, data_.get() + g * group_bytes_);
  }
}

ActivationForm PackedMatrix::takes() const {
  if (!is_float(format_)) return ActivationForm::kQuants;
  const bool is_rounded = format_ == BlockFormat::kBF16 && kernels_.round != nullptr;
  return is_rounded ? ActivationForm::kBfloats : ActivationForm::kFloats;
}

template <typename Activation, typename Output>
void PackedMatrix::multiply(const Activation* activations, size_t n_rows, size_t from, size_t to, Output output) const {
  constexpr ActivationForm kForm = std::is_same_v<Activation, ActivationBlock> ? ActivationForm::kQuants
                                   : std::is_same_v<Activation, BfloatBlock>   ? ActivationForm::kBfloats
                                                                               : ActivationForm::kFloats;
  assert(takes() == kForm);
  const auto& tiles = tiles_of(activations);
  const size_t row_size = kForm == ActivationForm::kFloats ? 1 : n_blocks_, n_outputs = n_groups_ * kGroupRows;
  for (size_t chunk = 0; chunk < n_rows; chunk += kMostRows) {
    const size_t chunk_end = std::min(chunk + kMostRows, n_rows);
    for (size_t g = from; g < to; ++g) {
      const uint8_t* group = data_.get() + g * group_bytes_;
      for (size_t row = chunk; row < chunk_end; row += ProductKernels::kTileRows) {
        const size_t n = std::min(ProductKernels::kTileRows, chunk_end - row);
        const Activation* const rows = activations + row * row_size;
        if constexpr (std::is_same_v<Output, float*>) {
          tiles[n - 1](group, n_blocks_, rows, output + row * n_outputs + g * kGroupRows, n_outputs);
        } else {
          alignas(kCacheLine) float outputs[ProductKernels::kTileRows * kGroupRows];
          tiles[n - 1](group, n_blocks_, rows, outputs, kGroupRows);
          for (size_t i = 0; i < n; ++i) {
            std::copy_n(outputs + i * kGroupRows, kGroupRows, output[row + i] + (g - from) * kGroupRows);
          }
        }
      }
    }
  }
}

template void PackedMatrix::multiply(const ActivationBlock*, size_t, size_t, size_t, float*) const;
template void PackedMatrix::multiply(const BfloatBlock*, size_t, size_t, size_t, float*) const;
template void PackedMatrix::multiply(const float* const*, size_t, size_t, size_t, float*) const;
template void PackedMatrix::multiply(const ActivationBlock*, size_t, size_t, size_t, float* const*) const;
template void PackedMatrix::multiply(const BfloatBlock*, size_t, size_t, size_t, float* const*) const;
template void PackedMatrix::multiply(const float* const*, size_t, size_t, size_t, float* const*) const;

}  // namespace corosrv
