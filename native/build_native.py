"""Builds `corosrv._native`: cffi declarations from the C headers, the C++ sources, and libllama to link.

libllama is the one that the installed llama-cpp-python carries; `COROSRV_LLAMA_PREFIX` names another installation
(with `include/` and `lib/`), and pkg-config is asked when there is neither.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cffi import FFI

NATIVE = Path(__file__).resolve().parent
HEADERS = (NATIVE / "include" / "corosrv_types.h", NATIVE / "include" / "corosrv.h")
# Python's own flags come first, and ask for symbols of a debugger: they cost time and space, and nobody reads them.
CFLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-fopenmp", "-Wall", "-Wextra", "-Wconversion"]


class Libllama(NamedTuple):
    """Where to find llama.h and libllama.so at build time, and how the extension finds the latter at run time."""

    include: Path
    lib: Path
    runtime: str


def find_libllama() -> Libllama:
    if prefix := os.environ.get("COROSRV_LLAMA_PREFIX"):
        return Libllama(Path(prefix, "include"), Path(prefix, "lib"), str(Path(prefix, "lib")))
    spec = importlib.util.find_spec("llama_cpp")
    packages = os.environ.get("COROSRV_LIBLLAMA_PACKAGES")  # set by backend.py where the package cannot be imported
    if spec is not None and spec.submodule_search_locations:
        packages = str(Path(spec.submodule_search_locations[0]).parent)
    if packages:
        return Libllama(Path(packages, "include"), Path(packages, "llama_cpp", "lib"), "$ORIGIN/../llama_cpp/lib")
    try:
        asked = ["pkg-config", "--variable=includedir", "llama"], ["pkg-config", "--variable=libdir", "llama"]
        include, lib = (Path(subprocess.check_output(command, text=True).strip()) for command in asked)
    except (OSError, subprocess.CalledProcessError):
        sys.exit(
            "corosrv needs libllama to build: install llama-cpp-python (make install does), or set COROSRV_LLAMA_PREFIX"
        )
    return Libllama(include, lib, str(lib))


def fingerprint(include: Path) -> str:
    """Hash of the headers: struct layouts change between versions, the library's SONAME does not."""
    return hashlib.sha256(b"".join((include / name).read_bytes() for name in ("llama.h", "ggml.h"))).hexdigest()


def declarations() -> str:
    """Returns what cffi reads: the headers without the preprocessor's lines and the C++ braces between two of them."""
    lines, is_cplusplus = [], False
    for line in "".join(header.read_text() for header in HEADERS).splitlines():
        if line.startswith("#ifdef __cplusplus"):
            is_cplusplus = True
        elif line.startswith("#endif"):
            is_cplusplus = False
        elif not is_cplusplus and not line.startswith("#"):
            lines.append(line)
    return "\n".join(lines)


def make_ffi() -> FFI:
    libllama = find_libllama()
    ffi = FFI()
    ffi.cdef(declarations())
    ffi.set_source(
        "corosrv._native",
        '#include "corosrv.h"',
        source_extension=".cpp",
        # Relative to the project: setuptools refuses absolute ones.
        sources=sorted(str(source.relative_to(NATIVE.parent)) for source in (NATIVE / "src").glob("*/*.cpp")),
        include_dirs=["native/include", "native/src", str(libllama.include)],
        define_macros=[("COROSRV_LLAMA_FINGERPRINT", f'"{fingerprint(libllama.include)}"')],
        extra_compile_args=CFLAGS + shlex.split(os.environ.get("COROSRV_CFLAGS", "")),
        library_dirs=[str(libllama.lib)],
        libraries=["llama", "ggml", "ggml-base"],
        extra_link_args=["-fopenmp"],
        # The second path serves builds in place, where the extension is not beside the llama_cpp package.
        runtime_library_dirs=[libllama.runtime, str(libllama.lib)],
        py_limited_api=True,
    )
    return ffi


ffi = make_ffi()
