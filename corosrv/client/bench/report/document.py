"""The results of a benchmark as values, which are written to JSON and read from it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec

from corosrv.base.errors import BenchError
from corosrv.client.bench.figures import stats
from corosrv.client.bench.figures.rounds import RoundFigures
from corosrv.client.bench.figures.stats import Quantiles
from corosrv.client.bench.report.machine import Machine


class ServerFigures(msgspec.Struct):
    """One server at one point: the figures of each round, and the curves of all rounds together."""

    name: str
    url: str
    model: str
    rounds: list[RoundFigures] = []
    ttft_curve: list[float] = []
    itl_curve: list[float] = []

    def median(self, figure: Callable[[RoundFigures], float | None]) -> float | None:
        """Returns the median round's value of a figure."""
        return stats.median(figure(each) for each in self.rounds)

    def quantiles(self, figure: Callable[[RoundFigures], Quantiles | None]) -> Quantiles | None:
        return stats.over_rounds(figure(each) for each in self.rounds)

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
