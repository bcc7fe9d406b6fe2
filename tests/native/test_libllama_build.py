"""Tests that libllama is built once for each set of options: with the real pip, and a small llama-cpp-python."""

import io
import itertools
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NATIVE = Path(__file__).parents[2] / "native"
TIMEOUT = 100.0  # seconds, of pip on a loaded machine

# A build backend without dependencies, in whose place llama-cpp-python has one that compiles for minutes.
BACKEND = """
import os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open(os.environ["BUILDS"], "a") as builds:
        builds.write(os.environ.get("CMAKE_ARGS", "") + "\\n")
    name = "llama_cpp_python-{version}-py3-none-any.whl"
    info = "llama_cpp_python-{version}.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        identity = (config_settings or {{}}).get("cmake.define.COROSRV_BUILD")
        if identity:
            wheel.writestr("llama_cpp/corosrv-build.txt", identity + "\\n")
        wheel.writestr("include/llama.h", "// libllama")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: llama-cpp-python\\nVersion: {version}\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Lets pip find a small llama-cpp-python and nothing else; returns the CMAKE_ARGS of each build of it."""
    version = (NATIVE / "libllama-version").read_text().strip()
    links, log = tmp_path / "links", tmp_path / "builds"
    links.mkdir()
    log.touch()
    top = f"llama_cpp_python-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: {version}\n",
        "pyproject.toml": PROJECT,
        "backend.py": BACKEND.format(version=version),
    }
    with tarfile.open(links / f"{top}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links, "PIP_CACHE_DIR": tmp_path / "cache", "BUILDS": log}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return lambda: log.read_text().splitlines()


def run(code: str, *arguments: str) -> str:
    """Runs code beside native/libllama.py in a process of its own; returns what it prints."""
    child = subprocess.run(
        [sys.executable, "-c", f"import libllama, sys; from pathlib import Path; {code}", *arguments],
        env={**os.environ, "PYTHONPATH": str(NATIVE)}, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


def unpack(folder: Path) -> Path:
    run("libllama.unpack(Path(sys.argv[1]))", str(folder))
    return folder


def test_two_installations_build_libllama_once(builds, tmp_path: Path) -> None:
    first, second = unpack(tmp_path / "first"), unpack(tmp_path / "second")

    assert len(builds()) == 1
    assert (first / "include" / "llama.h").is_file()
    assert (second / "include" / "llama.h").is_file()


def test_what_is_unpacked_already_asks_nobody(builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(tmp_path / "first")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "another"))

    unpack(tmp_path / "first")

    assert len(builds()) == 1


def test_an_unpacking_that_was_interrupted_is_done_again(builds, tmp_path: Path) -> None:
    interrupted = """
import zipfile
def extract(archive, folder):
    archive.extract(archive.namelist()[0], folder)
    raise KeyboardInterrupt
zipfile.ZipFile.extractall = extract
try:
    libllama.unpack(Path(sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(f"exec({interrupted!r})", str(tmp_path / "first")) == "interrupted\n"

    unpack(tmp_path / "first")

    assert len(builds()) == 1
    assert (tmp_path / "first" / "include" / "llama.h").is_file()


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_installation_that_was_interrupted_is_none(is_whole, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(NATIVE))
    import libllama

    monkeypatch.setattr(libllama.sysconfig, "get_path", lambda kind: str(tmp_path))
    info = tmp_path / f"llama_cpp_python-{libllama.pinned_version()}.dist-info"
    info.mkdir()
    if is_whole:
        (info / "INSTALLER").write_text("pip\n")

    assert libllama.installed_folder() == (tmp_path if is_whole else None)


def test_an_environment_that_was_begun_and_has_no_pip_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=TIMEOUT)
    make = ["sh", str(NATIVE / "environment.sh"), sys.executable, str(folder)]

    subprocess.run(make, check=True, timeout=TIMEOUT)
    (folder / "kept").touch()
    subprocess.run(make, check=True, timeout=TIMEOUT)

    assert (folder / "kept").exists()
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "--version"], check=True, timeout=TIMEOUT)


def test_other_options_build_it_anew_and_replace_what_pip_kept(builds, tmp_path: Path, monkeypatch: Any) -> None:
    unpack(tmp_path / "first")

    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    unpack(tmp_path / "first")
    unpack(tmp_path / "second")

    assert builds() == ["", "-DGGML_CUDA=on"]


def test_a_wheel_that_pip_built_by_itself_is_not_used(builds, tmp_path: Path) -> None:
    version = (NATIVE / "libllama-version").read_text().strip()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={tmp_path / 'plain'}"]
    subprocess.run([*command, f"llama-cpp-python=={version}"], check=True, timeout=TIMEOUT)

    folder = unpack(tmp_path / "first")

    assert len(builds()) == 2
    assert (folder / "llama_cpp" / "corosrv-build.txt").read_text().strip()


def test_options_that_are_not_set_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(NATIVE))
    import libllama

    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    first = libllama.build_options({})
    monkeypatch.delenv("CMAKE_ARGS")

    assert libllama.build_options(first.variables).identity == first.identity
    assert libllama.build_options({}).identity != first.identity

    monkeypatch.setenv("CMAKE_ARGS", "")
    assert libllama.build_options(first.variables).identity == libllama.build_options({}).identity


def test_progress_is_told_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(NATIVE))
    import libllama

    lines = ["Collecting\n", *(f"  [{n}/136] Building CXX object {n}.o\n" for n in range(1, 137))]
    passed_on = list(libllama._show_progress(lines, clock=itertools.count().__next__))  # a second for each file

    told = capsys.readouterr().out.splitlines()
    assert passed_on == lines
    assert len(told) == 28
    assert told[0] == "corosrv: libllama: 1 of 136 files after 0 min 01 s"
    assert told[-1] == "corosrv: libllama: 136 of 136 files after 2 min 16 s"
