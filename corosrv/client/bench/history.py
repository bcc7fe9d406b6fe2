"""Keeps reports in a folder, and compares one with an earlier one: ratios of medians, with confidence intervals."""

from __future__ import annotations

import os
import random
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from corosrv.base.errors import BenchError
from corosrv.client.bench import plots, words
from corosrv.client.bench.figures import RoundFigures
from corosrv.client.bench.report import Report, Section, ServerFigures, read, write

LAST = "LAST"  # the newest report that was saved
_RESAMPLES = 2000
_CONFIDENCE = 0.95
_NAME_WIDTH = 40  # columns

Figure = Callable[[RoundFigures], float | None]

# What is compared, and whether more of it is better.
COMPARED: tuple[tuple[str, bool, Figure], ...] = (
    ("tokens/s", True, lambda figures: figures.tokens_per_s),
    ("requests/s in limits", True, lambda figures: figures.goodput),
    ("TTFT p50", False, lambda figures: None if figures.ttft is None else figures.ttft.p50),
    ("ITL p50", False, lambda figures: None if figures.itl is None else figures.itl.p50),
)


@dataclass(frozen=True, slots=True)
class FigureChange:
    """The ratio of a figure now to the one before, and the interval in which it lies with 95 % confidence."""

    label: str
    ratio: float
    low: float
    high: float
    is_more_better: bool

    @property
    def verdict(self) -> str:
        """Returns better, worse, or nothing where chance could have made it."""
        if self.low <= 1 <= self.high:
            return ""
        return "better" if (self.ratio > 1) == self.is_more_better else "worse"


def folder() -> Path:
    """Returns the folder of saved reports, which may not be there yet."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data / "corosrv" / "bench"


def save(report: Report) -> Path:
    """Writes a report into the folder, and returns its path. Raises OSError."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    stamp = re.sub(r"[^0-9T]", "", report.machine.taken.partition("+")[0])
    number = 0
    while (path := place / f"{stamp}{f'-{number}' if number else ''}.json").exists():
        number += 1
    write(report, path)
    return path


def saved() -> list[Report]:
    """Reads all saved reports, the oldest first; what cannot be read is left out."""
    reports = []
    for path in sorted(folder().glob("*.json")):
        try:
            reports.append(read(path))
        except BenchError:
            continue
    return sorted(reports, key=lambda report: report.machine.taken)


def find(name: str, section: Section) -> Report | str:
    """Returns the report of this file, or the last one that was saved of the same load; or why there is none."""
    try:
        if name != LAST:
            return read(Path(name))
    except BenchError as error:
        return str(error)
    like = [report for report in saved() if any(map(section.is_like, report.sections))]
    return like[-1] if like else f"no report of this load was saved in {folder()}: run it with --save first"


def drawing(section: Section, reports: Sequence[Report]) -> str:
    """Draws the tokens a second of all reports of a load, as HTML; nothing where there is only one."""
    like = [(report, each) for report in reports for each in report.sections if section.is_like(each)]
    series: dict[str, list[tuple[str, float]]] = {}
    for report, each in like:
        for point in each.points:
            for server in filter(lambda server: server.rounds, point.servers):
                place = f"{report.machine.taken}, corosrv {report.machine.corosrv}"
                series.setdefault(f"{point.label}, {server.name}", []).append((place, server.tokens_per_s))
    return f"<figure>{plots.history(section.title, series)}</figure>" if len(like) > 1 else ""


def lines(section: Section, before: Report, now: Report) -> Iterator[str]:
    """Yields a table of what has changed since an earlier report."""
    yield f"Against {before.machine.taken} (corosrv {before.machine.corosrv}), 95 % intervals:"
    if (before.machine.processor, before.machine.cores) != (now.machine.processor, now.machine.cores):
        yield f"  taken on another machine: {words.machine(before.machine)}"
    n_compared = 0
    for label, server, other in _pairs(section, before):
        for change in changes(server, other):
            n_compared += 1
            figures = f"{change.ratio:6.2f} x   {change.low:.2f} to {change.high:.2f}   {change.verdict}"
            yield f"  {f'{label}, {change.label}':{_NAME_WIDTH}}{figures}".rstrip()
    if not n_compared:
        yield "  nothing is the same in both: another load, other points, or other names of servers"


def is_worse(section: Section, before: Report) -> bool:
    """Returns whether any figure is worse than before by more than chance."""
    pairs = ((server, other) for _, server, other in _pairs(section, before))
    return any(change.verdict == "worse" for pair in pairs for change in changes(*pair))


def _pairs(section: Section, before: Report) -> Iterator[tuple[str, ServerFigures, ServerFigures]]:
    """Yields what both have, under its name: a server is found by its name, and an only one is that in both."""
    for old in filter(section.is_like, before.sections):
        for point in section.points:
            for past in (past for past in old.points if past.label == point.label):
                for server in point.servers:
                    is_alone = len(point.servers) == len(past.servers) == 1
                    same = past.servers if is_alone else [one for one in past.servers if one.name == server.name]
                    for other in same:
                        yield f"{point.label}, {server.name}", server, other


def changes(now: ServerFigures, before: ServerFigures) -> Iterator[FigureChange]:
    """Yields the change of each figure that both have."""
    for label, is_more_better, figure in COMPARED:
        new, old = ([value for each in rounds if (value := figure(each))] for rounds in (now.rounds, before.rounds))
        if new and old:
            ratio = statistics.median(new) / statistics.median(old)
            yield FigureChange(label, ratio, *interval(new, old), is_more_better)


def interval(new: Sequence[float], old: Sequence[float]) -> tuple[float, float]:
    """Returns the confidence interval of the ratio of medians, by bootstrap over rounds: always the same."""
    chance = random.Random(1)
    ratios = sorted(
        statistics.median(chance.choices(new, k=len(new))) / statistics.median(chance.choices(old, k=len(old)))
        for _ in range(_RESAMPLES)
    )
    cut = round((1 - _CONFIDENCE) / 2 * _RESAMPLES)
    return ratios[cut], ratios[-1 - cut]
