// Target attributes and helpers of the AVX-512 kernels. The extension is compiled for any x86-64 processor: functions
// that need more carry a target attribute, and are called only if has_avx512() and the like return true.
#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#ifndef __clang__
// GCC's own headers initialise some registers with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#define COROSRV_HAS_KERNELS 1
#define COROSRV_AVX512_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
#define COROSRV_AVX512 __attribute__((target(COROSRV_AVX512_TARGET)))
#define COROSRV_AVX512_VNNI __attribute__((target(COROSRV_AVX512_TARGET ",avx512vnni")))

namespace corosrv {

inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

// Loads sixteen 16-bit floats.
COROSRV_AVX512 inline __m512 load_halves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

}  // namespace corosrv

#endif
