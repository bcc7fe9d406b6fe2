"""Builds the pinned llama-cpp-python, which carries libllama, with corosrv's options: once for each set of options.

pip keeps the wheel that it built in its cache, whatever the options were. So the wheel names them in a file of its own,
and one that names others, or none, is built anew. `make` runs this file, which installs the wheel; the build backend of
pyproject.toml unpacks it, and pip finds it in its cache when it comes to corosrv's dependencies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
IDENTITY_FILE = "llama_cpp/corosrv-build.txt"  # written by libllama.cmake
VARIABLES = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
PROGRESS = re.compile(r"\[(\d+)/(\d+)\]")
PROGRESS_INTERVAL = 5.0  # seconds


def pinned_version() -> str:
    return (NATIVE / "libllama-version").read_text().strip()


@dataclass(frozen=True)
class BuildOptions:
    """Holds what decides which libllama is built: its version, libllama.cmake, the user's flags and what GCC needs."""

    version: str
    cmake_file: str
    variables: Mapping[str, str]
    amx_flags: str
    cmake_path: Path = NATIVE / "libllama.cmake"

    @property
    def identity(self) -> str:
        """Hash of the options; differs where anything that is built could differ."""
        parts = [self.version, self.cmake_file, json.dumps(dict(self.variables), sort_keys=True), self.amx_flags]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which pip builds libllama."""
        flags = f"{self.variables.get('CXXFLAGS', '')} {self.amx_flags}".strip()
        return {**os.environ, **self.variables, **({"CXXFLAGS": flags} if flags else {})}


def build_options(remembered: Mapping[str, str]) -> BuildOptions:
    """Returns the options that environment variables name; one that is not set is as it was `remembered`."""
    chosen = {name: os.environ.get(name, remembered.get(name, "")) for name in VARIABLES}
    amx_flags = subprocess.check_output(["sh", str(NATIVE / "amx_flags.sh")], text=True).strip()
    return BuildOptions(
        version=pinned_version(),
        cmake_file=(NATIVE / "libllama.cmake").read_text(),
        variables={name: value for name, value in chosen.items() if value},
        amx_flags=amx_flags,
    )


def build_wheel(options: BuildOptions, folder: Path) -> Path:
    """Makes the wheel in a folder, from pip's cache if that has it with these options; compiling takes minutes.

    Ends the program with pip's words if it fails.
    """
    wheel = compile_wheel(options, folder)
    if wheel_identity(wheel) == options.identity:
        return wheel
    say("pip kept a libllama that was built with other options: building it anew")
    wheel.unlink()
    # Fails where pip keeps nothing, which is as good.
    subprocess.run([*PIP, "cache", "remove", f"llama_cpp_python-{options.version}"], capture_output=True, check=False)
    wheel = compile_wheel(options, folder)
    if wheel_identity(wheel) != options.identity:
        sys.exit("corosrv: pip gives a llama-cpp-python that was not built here; look at `pip config list`")
    return wheel


def wheel_identity(wheel: Path) -> str:
    """Returns the identity of the options that a wheel was built with; empty if it names none."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(IDENTITY_FILE)]
        return archive.read(names[0]).decode().strip() if names else ""


def compile_wheel(options: BuildOptions, folder: Path, *arguments: str) -> Path:
    """Has pip make the wheel in a folder, with more arguments for it. Ends the program with pip's words if it fails."""
    settings = {"CMAKE_PROJECT_INCLUDE": options.cmake_path, "COROSRV_BUILD": options.identity}
    command = [
        *(*PIP, "wheel", "--verbose", "--no-deps", "--no-binary", "llama-cpp-python", "--wheel-dir", str(folder)),
        *arguments,
        *(f"--config-settings=cmake.define.{name}={value}" for name, value in settings.items()),
        f"llama-cpp-python=={options.version}",
    ]
    with subprocess.Popen(
        command, env=options.environ, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as pip:
        lines = list(_show_progress(pip.stdout or ()))
    if pip.returncode != 0:
        print(*lines[-30:], sep="", file=sys.stderr)
        sys.exit("corosrv: llama-cpp-python could not be built; above are the last lines of pip's output")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _show_progress(lines: Iterable[str], clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """Passes pip's lines on, and prints the compiler's own count of files every few seconds, and at its end."""
    start = clock()
    next_at = start
    for line in lines:
        yield line
        if match := PROGRESS.search(line):
            n_compiled, n_files = int(match.group(1)), int(match.group(2))
            now = clock()
            if now >= next_at or n_compiled == n_files:
                seconds = round(now - start)
                say(f"libllama: {n_compiled} of {n_files} files after {seconds // 60} min {seconds % 60:02} s")
                next_at = now + PROGRESS_INTERVAL


def installed_folder() -> Path | None:
    """Returns where this environment has the pinned llama-cpp-python, also seen from an isolated build; or None.

    Installers name themselves when all files are there: an installation that was interrupted has no such file.
    """
    for kind in ("purelib", "platlib"):
        packages = Path(sysconfig.get_path(kind))
        if (packages / f"llama_cpp_python-{pinned_version()}.dist-info" / "INSTALLER").is_file():
            return packages
    return None


def read_identity(packages: Path | None) -> str:
    """Returns what the libllama in a folder of packages was built with; empty if there is none or it does not say."""
    try:
        return (packages / IDENTITY_FILE).read_text().strip() if packages else ""
    except OSError:
        return ""


def unpack(folder: Path) -> None:
    """Lays libllama's headers and libraries into a folder, all or none, unless it has them with these options."""
    options = build_options({})
    if read_identity(folder) == options.identity:
        return
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(build_wheel(options, Path(scratch))) as archive:
        half = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(half, ignore_errors=True)
        archive.extractall(half)
        shutil.rmtree(folder, ignore_errors=True)
        half.rename(folder)


def install(memory: Path) -> None:
    """Installs libllama into this environment, unless it has it with these options; these are kept in `memory`."""
    try:
        remembered = json.loads(memory.read_text())
    except (OSError, ValueError):
        remembered = {}
    options = build_options(remembered)
    if read_identity(installed_folder()) != options.identity:
        say(f"installing libllama ({describe(options)}); compiling it takes 3 to 4 minutes on 2 idle cores, once")
        with tempfile.TemporaryDirectory() as scratch:
            wheel = build_wheel(options, Path(scratch))
            # What it depends on comes with corosrv itself.
            subprocess.run([*PIP, "install", "--quiet", "--force-reinstall", "--no-deps", str(wheel)], check=True)
    memory.write_text(json.dumps(dict(options.variables)))


def describe(options: BuildOptions) -> str:
    """Describes the options in a line of log."""
    extra = " ".join([*options.variables.values(), options.amx_flags]).strip()
    return f"llama-cpp-python {options.version}{', with ' if extra else ''}{extra}"


def say(words: str) -> None:
    print(f"corosrv: {words}", flush=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
