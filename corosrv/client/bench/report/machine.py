"""The machine that figures were taken on, without which they mean little."""

from __future__ import annotations

import os
import platform
import re
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from corosrv import __version__


class Machine(msgspec.Struct, frozen=True):
    """The machine that made the load; servers on loopback share it."""

    processor: str
    cores: int  # that this process may use
    memory: int  # bytes
    system: str
    python: str
    corosrv: str
    libllama: str  # the version of llama-cpp-python that carries it; empty when there is none
    load_average: float  # of the minute before: other work on the machine
    taken: str  # when, ISO 8601


def look() -> Machine:
    return Machine(
        processor=_processor(),
        cores=n_cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=_system(),
        python=sys.version.split()[0],
        corosrv=__version__,
        libllama=_version("llama-cpp-python"),
        load_average=os.getloadavg()[0],
        taken=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def n_cores() -> int:
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    return _field(Path("/proc/cpuinfo"), r"^model name\s*: (.*)$") or platform.machine()


def _system() -> str:
    name = _field(Path("/etc/os-release"), r'^PRETTY_NAME="?([^"\n]*)')
    return ", ".join(filter(None, (name, f"Linux {os.uname().release}")))


def _field(file: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, file.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return match.group(1) if match else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
