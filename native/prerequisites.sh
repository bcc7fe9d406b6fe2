#!/bin/sh
# Names what is missing to build corosrv, each in one sentence; prints nothing when all is there.
python=${PYTHON:-python3}
missing=0
lacks() { echo "corosrv: $1" >&2; missing=1; }

if ! command -v "$python" >/dev/null 2>&1; then
  lacks "Python 3.10 or newer is needed and '$python' was not found: install it, or say make PYTHON=/path/to/python3."
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  lacks "Python 3.10 or newer is needed and '$python' is $("$python" -V 2>&1): say make PYTHON=/path/to/a/newer/one."
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  lacks "Python's venv module is needed and '$python' comes without it: install it (Debian: apt-get install python3-venv)."
elif ! [ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then
  lacks "Python's C headers are needed and '$python' comes without them: install them (Debian: apt-get install python3-dev)."
fi
compiler=${CXX:-c++}
if ! command -v "$compiler" >/dev/null 2>&1; then
  lacks "a C++17 compiler is needed and '$compiler' was not found: install one (Debian: apt-get install g++)."
elif ! echo '#include <string_view>
int main() { return std::string_view("").size(); }' | "$compiler" -std=c++17 -x c++ -fsyntax-only - 2>/dev/null; then
  lacks "a C++17 compiler is needed and '$compiler' is too old: install g++ 9 or newer, or clang 10 or newer."
fi
command -v git >/dev/null 2>&1 || lacks "git is needed and was not found: install it (Debian: apt-get install git)."
exit $missing
