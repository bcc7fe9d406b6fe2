#!/bin/sh
# Installs the pinned llama-cpp-python, which carries libllama, into the virtual environment $VENV. Compiled once: pip
# keeps the wheel.
set -eu
pip="${VENV:-.venv}/bin/python -m pip"
version=$(cat "$(dirname "$0")/libllama-version")

if $pip show --quiet llama-cpp-python 2>/dev/null && $pip list --format=freeze | grep -q "^llama.cpp.python==$version$"; then
  exit 0
fi

# GCC before 12.4, and 13.0 to 13.2, miscompile _tile_loadconfig: the AMX kernels then die with SIGILL.
gcc_version=$("${CXX:-c++}" -dM -E -x c++ /dev/null | awk '
  $2 == "__clang__" { clang = 1 } $2 == "__GNUC__" { major = $3 } $2 == "__GNUC_MINOR__" { minor = $3 }
  END { print clang ? 99999 : major * 100 + minor }')
if [ "$gcc_version" -lt 1204 ] || { [ "$gcc_version" -ge 1300 ] && [ "$gcc_version" -lt 1303 ]; }; then
  CXXFLAGS="${CXXFLAGS:-} -fno-strict-aliasing -fno-tree-dse -fno-dse"
  export CXXFLAGS
  echo "corosrv: this compiler needs$CXXFLAGS for libllama's AMX kernels"
fi

echo "corosrv: installing llama-cpp-python $version; compiling libllama takes about 4 minutes on 2 cores, once"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Of pip's many lines, the compiler's own count is shown.
if ! { $pip install --disable-pip-version-check --verbose "llama-cpp-python==$version" 2>&1; echo "status $?"; } |
  tee "$log" | awk '
    match($0, /\[[0-9]+\/[0-9]+\]/) {
      count = substr($0, RSTART + 1, RLENGTH - 2); split(count, n, "/")
      if (n[1] % 20 == 0 || n[1] == n[2]) { print "  compiled " n[1] " of " n[2]; fflush() }
    }
    $1 == "status" { exit $2 }'
then
  echo "corosrv: llama-cpp-python could not be installed; the last lines of pip's output:" >&2
  tail -n 30 "$log" >&2
  exit 1
fi
