"""The side-by-side table: what was aimed for, and what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape

from benchmarks.limit import Limit
from corosrv.client.bench import words
from corosrv.client.bench.page import table
from corosrv.client.bench.report import PointFigures, Report, Section, ServerFigures


class Results(Report):
    """A report, the commands that started the servers, and how fast libllama is alone."""

    servers: list[str]
    limits: list[Limit]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `factor` says how many times better corosrv is, the shares what it reaches of libllama."""

    work: str
    ours: str
    theirs: str
    factor: float | None
    share: float | None = None  # of libllama reading the prompts and decoding
    decode_share: float | None = None  # of libllama decoding


HEAD = ("work", "corosrv", "llama-server", "times better", "of libllama alone", "of its decoding alone")


def rows(results: Results) -> Iterator[Row]:
    limits = {limit.batch: limit for limit in results.limits}
    for section in results.sections:
        for point in section.points:
            yield _row(section, point, limits)


def markdown(results: Results) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "| " + " | ".join("---" for _ in HEAD) + " |"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows(results)]
    commands = [*results.servers, *(section.command for section in results.sections), *_limit_commands(results)]
    listed = "\n".join(f"    {command}" for command in commands)
    taken = f"Medians of {words.count(_rounds(results), 'round')}. {words.machine(results.machine)}."
    said = " ".join(filter(None, (taken, words.doubts(results.machine))))
    return "\n".join(lines) + f"\n\n{said}\n\n{listed}\n"


def html(results: Results) -> str:
    """The same for the top of the page."""
    cells = [[escape(cell) for cell in _cells(row)] for row in rows(results)]
    commands = "\n".join([*results.servers, *_limit_commands(results)])
    return table(list(HEAD), cells) + f"<code>{escape(commands)}</code>"


def _row(section: Section, point: PointFigures, limits: dict[int, Limit]) -> Row:
    if section.mix == "shared":
        seconds = _each(point, lambda server: server.median(lambda one: one.seconds))
        return _less_is_better("one system prompt, " + point.label + ": seconds", seconds, words.number)
    if section.mix == "arrivals":
        itl = _each(point, lambda server: server.median(lambda one: one.itl.p99 if one.itl else None))
        work = f"{point.clients} running streams while long prompts arrive: ITL p99, ms"
        return _less_is_better(work, itl, words.ms)
    ours, theirs = _each(point, lambda server: server.tokens_per_s)
    limit = limits.get(point.clients)
    shares = (_over(ours, limit.median), _over(ours, limit.decode_median)) if limit else (None, None)
    return Row(f"{point.label}: tokens/s", words.number(ours), words.number(theirs), _over(ours, theirs), *shares)


def _less_is_better(work: str, pair: tuple[float | None, float | None], shown: Callable[[float | None], str]) -> Row:
    ours, theirs = pair
    return Row(work, shown(ours), shown(theirs), _over(theirs, ours))


def _each(point: PointFigures, figure: Callable[[ServerFigures], float | None]) -> tuple[float | None, float | None]:
    ours, theirs = point.servers
    return figure(ours), figure(theirs)


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _cells(row: Row) -> tuple[str, ...]:
    shares = ("" if share is None else words.percent(share) for share in (row.share, row.decode_share))
    return row.work, row.ours, row.theirs, words.ratio(row.factor), *shares


def _limit_commands(results: Results) -> list[str]:
    return [limit.command for limit in results.limits]


def _rounds(results: Results) -> int:
    return max((section.rounds for section in results.sections), default=0)
