"""The results of a benchmark as values, which are written to JSON and read from it.

They name the machine that figures were taken on, without which they mean little.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from corosrv.base import __version__
from corosrv.base.errors import BenchError
from corosrv.client.bench import figures
from corosrv.client.bench.figures import Quantiles, RoundFigures


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


class ServerFigures(msgspec.Struct):
    """One server at one point: the figures of each round, and the curves of all rounds together."""

    name: str
    url: str
    model: str
    rounds: list[RoundFigures] = []
    ttft_curve: list[float] = []
    itl_curve: list[float] = []

    def median(self, figure: Callable[[RoundFigures], float | None]) -> float | None:
        return figures.median(figure(each) for each in self.rounds)

    def quantiles(self, figure: Callable[[RoundFigures], Quantiles | None]) -> Quantiles | None:
        return figures.over_rounds(figure(each) for each in self.rounds)

    @property
    def tokens_per_s(self) -> float:
        return statistics.median(each.tokens_per_s for each in self.rounds) if self.rounds else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest round's tokens a second."""
        speeds = [each.tokens_per_s for each in self.rounds]
        return (min(speeds), max(speeds)) if speeds else (0.0, 0.0)

    @property
    def failures(self) -> dict[str, int]:
        """Numbers of failed requests by kind, over all rounds."""
        counts: dict[str, int] = {}
        for each in self.rounds:
            for label, n in each.failures.items():
                counts[label] = counts.get(label, 0) + n
        return counts


class PointFigures(msgspec.Struct):
    """One point of the sweep: one server, or two side by side."""

    label: str
    clients: int
    rate: float
    requests: int  # of a round
    servers: list[ServerFigures]

    def ratio(self, figure: Callable[[ServerFigures], float | None]) -> float | None:
        """Returns the ratio of the first server's figure to the second's; None where one is missing."""
        if len(self.servers) < 2:
            return None
        ours, theirs = figure(self.servers[0]), figure(self.servers[1])
        return ours / theirs if ours is not None and theirs else None


class Section(msgspec.Struct):
    """One mix, with the command that gives its figures."""

    title: str
    mix: str
    tokens: int
    rounds: int
    command: str
    is_forced: bool
    points: list[PointFigures] = []
    is_interrupted: bool = False
    turns: int = 1
    limits: str = ""  # of latency, which requests have to keep
    goodput: dict[str, float] = {}  # by server: the highest rate at which they do

    @property
    def unit(self) -> str:
        """The word for what is counted of a round: a conversation is one request for each turn."""
        return "conversation" if self.turns > 1 or self.mix == "file" else "request"

    def is_like(self, other: Section) -> bool:
        """Returns whether the load of both is the same, but for points and rounds."""
        mine, theirs = ((each.mix, each.tokens, each.turns, each.is_forced) for each in (self, other))
        return mine == theirs

    @property
    def failed(self) -> int:
        return sum(each.failed for point in self.points for server in point.servers for each in server.rounds)


class Report(msgspec.Struct):
    """The content of a results file: figures, and the machine that they were taken on."""

    machine: Machine
    sections: list[Section]


def write(report: Report, file: Path) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read(file: Path) -> Report:
    """Reads a report. Raises BenchError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        raise BenchError(f"{file} is not a report: {error}") from None
