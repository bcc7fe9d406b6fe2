#include "kernels/elements.h"
#include "kernels/instruction_sets.h"

#if COROSRV_HAS_KERNELS

#define COROSRV_KERNEL COROSRV_AVX512
#include "kernels/avx512.h"
//
#include "kernels/element_tiles.h"

namespace corosrv {

const ElementKernels* avx512_elements() { return has_avx512() ? &kElements : nullptr; }

}  // namespace corosrv

#else

namespace corosrv {

const ElementKernels* avx512_elements() { return nullptr; }

}  // namespace corosrv

#endif
