#!/bin/sh
# environment.sh PYTHON FOLDER: makes the virtual environment, unless it is there with a pip that works. One whose making
# was interrupted has a Python and no pip, and is made anew.
set -eu
"$2/bin/python" -m pip --version >/dev/null 2>&1 || "$1" -m venv --clear "$2"
