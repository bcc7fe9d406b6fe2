#include "kernels/elements.h"
#include "kernels/instruction_sets.h"

#if COROSRV_HAS_KERNELS

#define COROSRV_KERNEL COROSRV_AVX2
#include "kernels/avx2.h"
//
#include "kernels/element_tiles.h"

namespace corosrv {

const ElementKernels* avx2_elements() { return has_avx2() ? &kElements : nullptr; }

}  // namespace corosrv

#else

namespace corosrv {

const ElementKernels* avx2_elements() { return nullptr; }

}  // namespace corosrv

#endif
