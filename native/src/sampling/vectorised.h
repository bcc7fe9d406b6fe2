// One copy of a function for each vector unit, chosen when the library is loaded.
#pragma once

// The thread sanitizer cannot run the chooser.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define COROSRV_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define COROSRV_VECTORISED
#endif
