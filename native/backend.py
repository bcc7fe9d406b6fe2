"""The build backend that pyproject.toml names: setuptools', which is told where libllama is.

`pip install .` builds apart from the environment that it installs into. A libllama that this environment has is used;
otherwise it is built here with corosrv's options, and pip, which needs it a moment later, takes it from its cache.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libllama
from setuptools import build_meta

UNPACKED = Path("build", "libllama")
OLDEST_PYTHON = (3, 10)  # as setup.cfg has it


def check_python() -> None:
    """Refuses a Python that is too old. pip itself looks at python_requires after libllama was compiled."""
    if sys.version_info[:2] < OLDEST_PYTHON:
        needed, found = (".".join(map(str, version[:2])) for version in (OLDEST_PYTHON, sys.version_info))
        raise SystemExit(
            f"corosrv needs Python {needed} or newer, and this is Python {found}: install with a newer one"
        )


def provide_libllama() -> None:
    """Names a folder with libllama to build_native.py, unless it can be imported. Compiles it where there is none."""
    if importlib.util.find_spec("llama_cpp") or "COROSRV_LLAMA_PREFIX" in os.environ:
        return
    packages = libllama.installed_folder()
    if packages is None:
        libllama.unpack(UNPACKED)
        packages = UNPACKED.resolve()
    os.environ["COROSRV_LIBLLAMA_PACKAGES"] = str(packages)


def with_libllama(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a hook of PEP 517 or 660; front ends call each in a process of its own."""

    @functools.wraps(hook)
    def call(*arguments: Any, **keywords: Any) -> Any:
        check_python()
        provide_libllama()
        return hook(*arguments, **keywords)

    return call


get_requires_for_build_wheel = with_libllama(build_meta.get_requires_for_build_wheel)
get_requires_for_build_editable = with_libllama(build_meta.get_requires_for_build_editable)
get_requires_for_build_sdist = with_libllama(build_meta.get_requires_for_build_sdist)
prepare_metadata_for_build_wheel = with_libllama(build_meta.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = with_libllama(build_meta.prepare_metadata_for_build_editable)
build_wheel = with_libllama(build_meta.build_wheel)
build_editable = with_libllama(build_meta.build_editable)
build_sdist = with_libllama(build_meta.build_sdist)
