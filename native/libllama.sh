#!/bin/sh
# Installs the pinned llama-cpp-python, which carries libllama, into the virtual environment $VENV. Compiled once: pip
# keeps the wheel.
set -eu
pip="${VENV:-.venv}/bin/python -m pip"
version=$(cat "$(dirname "$0")/libllama-version")

if $pip show --quiet llama-cpp-python 2>/dev/null && $pip list --format=freeze | grep -q "^llama.cpp.python==$version$"; then
  exit 0
fi

amx_flags=$(sh "$(dirname "$0")/amx_flags.sh")
if [ -n "$amx_flags" ]; then
  CXXFLAGS="${CXXFLAGS:-} $amx_flags"
  export CXXFLAGS
  echo "corosrv: this compiler needs $amx_flags for libllama's AMX kernels"
fi

echo "corosrv: installing llama-cpp-python $version; compiling libllama takes 3 to 4 minutes on 2 idle cores, once"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Shows the compiler's own count and nothing else of pip's many lines.
build_options=$(cd "$(dirname "$0")" && pwd)/libllama.cmake
if ! { $pip install --disable-pip-version-check --verbose "llama-cpp-python==$version" \
         --config-settings=cmake.define.CMAKE_PROJECT_INCLUDE="$build_options" 2>&1; echo "status $?"; } |
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
