#!/bin/sh
# Builds the peers, llama-server and llama-batched-bench, from the very llama.cpp sources that the pinned
# llama-cpp-python carries, so that a comparison differs in nothing but the server. Prints the folder of the programs.
# They are built once for each version, into the user's cache.
set -eu
bin="$(cd "${VENV:-.venv}/bin" && pwd)"
native="$(dirname "$0")/../native"
version=$(cat "$native/libllama-version")
root="${XDG_CACHE_HOME:-$HOME/.cache}/corosrv-peers/llama-cpp-python-$version"
programs="$root/build/bin"
say() { echo "corosrv: $1" >&2; }

if [ ! -x "$programs/llama-server" ] || [ ! -x "$programs/llama-batched-bench" ]; then
  say "building llama-server of llama-cpp-python $version; this takes some 10 minutes on 2 cores, once"
  PATH="$bin:$PATH"
  for tool in cmake ninja; do
    command -v "$tool" >/dev/null || "$bin/python" -m pip install --quiet --disable-pip-version-check "$tool" >&2
  done
  mkdir -p "$root"
  sources="$root/llama_cpp_python-$version"
  if [ ! -f "$root/unpacked" ]; then # an earlier run may have ended while it unpacked
    "$bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
      --no-binary llama-cpp-python --dest "$root" "llama-cpp-python==$version" >&2
    tar -xzf "$sources.tar.gz" -C "$root"
    touch "$root/unpacked"
  fi
  CXXFLAGS="${CXXFLAGS:-} $(sh "$native/amx_flags.sh")"
  export CXXFLAGS
  cmake -S "$sources/vendor/llama.cpp" -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >&2
  ninja -C "$root/build" llama-server llama-batched-bench >&2
fi
echo "$programs"
