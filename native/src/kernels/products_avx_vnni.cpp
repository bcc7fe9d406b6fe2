#include "kernels/instruction_sets.h"
#include "kernels/packed_matrix.h"

#if COROSRV_HAS_AVX_VNNI

#define COROSRV_KERNEL COROSRV_AVX_VNNI
#include "kernels/avx2.h"

namespace corosrv {

namespace {

constexpr bool kSignedQuants = false;

// Adds to `sum` the products of four weights with four activations in each lane, for the registers [kFrom, kTo).
template <unsigned, size_t kFrom, size_t kTo>
COROSRV_KERNEL inline Ints dot(const Ints (&weights)[8], const int8_t* quants, Ints sum) {
#pragma GCC unroll 8
  for (size_t i = kFrom; i < kTo; ++i) sum = _mm256_dpbusd_avx_epi32(sum, weights[i], broadcast(quants + 4 * i));
  return sum;
}

}  // namespace

}  // namespace corosrv

#include "kernels/product_tiles.h"

namespace corosrv {

const ProductKernels* avx_vnni_products() {
  if (!has_avx_vnni()) return nullptr;
  static const ProductKernels kKernels{"AVX-VNNI", avx2_products()->quantize, all_tiles(), all_float_tiles()};
  return &kKernels;
}

}  // namespace corosrv

#else

namespace corosrv {

const ProductKernels* avx_vnni_products() { return nullptr; }

}  // namespace corosrv

#endif
