"""The chat templates that llama.cpp carries in its sources, of the release that corosrv is built with."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

_SOURCES = "vendor/llama.cpp"
_FOLDER = f"{_SOURCES}/models/templates"
_CHAT_TESTS = "tests/test-chat.cpp"
_DOWNLOAD_TIMEOUT = 120  # seconds
FAILURES = (subprocess.SubprocessError, OSError, tarfile.TarError)


@cache
def source_of(name: str) -> str:
    """Returns a template's text."""
    return (folder() / f"{name}.jinja").read_text()


def names() -> list[str]:
    """Returns the names of all templates; skips the test where they cannot be had."""
    return sorted(path.stem for path in folder().glob("*.jinja"))


def are_here() -> bool:
    """Tells whether the templates and llama.cpp's tests of them are on this machine."""
    return _templates().is_dir() and (_templates().parents[1] / _CHAT_TESTS).is_file()


@cache
def folder() -> Path:
    """Returns where the templates lie, after downloading them if need be; skips where they cannot be had."""
    try:
        fetch()
    except FAILURES as error:
        pytest.skip(f"llama.cpp's chat templates cannot be had: {error}")
    return _templates()


def chat_tests() -> Path:
    """Returns the source of llama.cpp's own tests of templates; downloads and skips as `folder` does."""
    return folder().parents[1] / _CHAT_TESTS


def fetch() -> None:
    """Downloads the templates unless they are here; waits for up to two minutes. Raises one of FAILURES."""
    if not are_here():
        _unpack(_root(), _version())


def _templates() -> Path:
    if sources := os.environ.get("LLAMA_CPP_SOURCES"):
        return Path(sources, "models", "templates")
    return _root() / f"llama_cpp_python-{_version()}" / _FOLDER


def _root() -> Path:
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_folder, "corosrv-peers", f"llama-cpp-python-{_version()}")


def _version() -> str:
    return metadata.version("llama-cpp-python")


def _unpack(root: Path, version: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    archive = root / f"llama_cpp_python-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--no-binary", "llama-cpp-python", "--dest", str(root), f"llama-cpp-python=={version}"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=_DOWNLOAD_TIMEOUT)
    with tarfile.open(archive) as packed:
        places = (_FOLDER, f"{_SOURCES}/{_CHAT_TESTS}")
        wanted = [member for member in packed if any(place in member.name for place in places) and member.isfile()]
        packed.extractall(root, wanted, filter="data")


if __name__ == "__main__":  # as `make test` does, before the tests are collected
    try:
        fetch()
    except FAILURES as error:
        print(f"corosrv: llama.cpp's chat templates cannot be had, and their tests skip: {error}")
