#!/bin/sh
# Prints the flags that this compiler needs to build llama.cpp right, or nothing.
# GCC before 12.4, and 13.0 to 13.2, miscompile _tile_loadconfig: the AMX kernels then die with SIGILL.
set -eu
gcc_version=$("${CXX:-c++}" -dM -E -x c++ /dev/null | awk '
  $2 == "__clang__" { clang = 1 } $2 == "__GNUC__" { major = $3 } $2 == "__GNUC_MINOR__" { minor = $3 }
  END { print clang ? 99999 : major * 100 + minor }')
if [ "$gcc_version" -lt 1204 ] || { [ "$gcc_version" -ge 1300 ] && [ "$gcc_version" -lt 1303 ]; }; then
  echo "-fno-strict-aliasing -fno-tree-dse -fno-dse"
fi
