// The instruction sets that kernels are written for. The extension is compiled for any x86-64 processor: functions that
// need more carry a target attribute, and are called only if has_avx2() and the like return true.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#ifndef __clang__
// GCC's own headers initialise some registers with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <cpuid.h>
#include <immintrin.h>

#include <cmath>

#define COROSRV_HAS_KERNELS 1
// Older compilers do not know their instructions.
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define COROSRV_HAS_AVX_VNNI 1
#define COROSRV_HAS_AVX512_BF16 1
#endif
#define COROSRV_AVX2_TARGET "avx2,fma,f16c"
#define COROSRV_AVX512_TARGET "avx512f,avx512bw,avx512vl,avx512dq," COROSRV_AVX2_TARGET
#define COROSRV_AVX2 __attribute__((target(COROSRV_AVX2_TARGET)))
#define COROSRV_AVX_VNNI __attribute__((target(COROSRV_AVX2_TARGET ",avxvnni")))
#define COROSRV_AVX512 __attribute__((target(COROSRV_AVX512_TARGET)))
#define COROSRV_AVX512_VNNI __attribute__((target(COROSRV_AVX512_TARGET ",avx512vnni")))
#define COROSRV_AVX512_BF16 __attribute__((target(COROSRV_AVX512_TARGET ",avx512bf16")))

namespace corosrv {

inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

// Of processors for notebooks and desktops, which have dot products of bytes in registers of AVX2.
inline bool has_avx_vnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}

inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && has_avx2();
}

// Rounds to the digits of a 16-bit float. Numbers that are too large for one stay as they are.
COROSRV_AVX2 inline float round_to_half(float value) {
  const float rounded = _cvtsh_ss(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  return std::isinf(rounded) ? value : rounded;
}

}  // namespace corosrv

#endif
