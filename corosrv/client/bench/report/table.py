"""The report as text, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from corosrv.client.bench.figures import Quantiles, RoundFigures
from corosrv.client.bench.report import words
from corosrv.client.bench.report.document import PointFigures, Section, ServerFigures

LABEL = 26  # columns
CELL = 16

LATENCIES: tuple[tuple[str, Callable[[RoundFigures], Quantiles | None]], ...] = (
    ("TTFT", lambda figures: figures.ttft),
    ("ITL", lambda figures: figures.itl),
    ("total", lambda figures: figures.total),
    ("long TTFT", lambda figures: figures.arriving_ttft),
)


def text(section: Section) -> str:
    """Writes all points of a section, with the notes that belong to them."""
    lines = [f"{section.title}; {words.size(section)}", ""]
    for point in section.points:
        if any(server.rounds for server in point.servers):
            lines += [*_point(point), ""]
    return "\n".join((*lines, *words.notes(section))) + "\n"


def _point(point: PointFigures) -> Iterator[str]:
    title = f"{point.label} ({words.count(point.requests, 'request')})"
    yield _row(title, [server.name for server in point.servers], "ratio" if len(point.servers) > 1 else "")
    yield _row("  tokens/s", [words.number(server.tokens_per_s) for server in point.servers], _ratio(point))
    yield _row("    slowest-fastest round", ["-".join(map(words.number, server.spread)) for server in point.servers])
    for label, figure in RATES:
        yield _row(label, [words.number(server.median(figure)) for server in point.servers], _ratio(point, figure))
    yield _row("  client CPU of a core", [_cpu(server, lambda figures: figures.cpu.core) for server in point.servers])
    yield _row("    of the machine", [_cpu(server, lambda figures: figures.cpu.machine) for server in point.servers])
    yield _row("    us an event", [words.number(server.median(_us_per_event)) for server in point.servers])
    yield from _failures(point)
    yield from _latencies(point)


RATES: tuple[tuple[str, Callable[[RoundFigures], float | None]], ...] = (
    ("  tokens/s of a stream", lambda figures: figures.stream_tokens_per_s),
    ("  requests/s", lambda figures: figures.requests_per_s),
    ("  seconds a round", lambda figures: figures.seconds),
    ("  tokens in one read", lambda figures: figures.tokens_per_arrival),
)


def _us_per_event(figures: RoundFigures) -> float:
    return figures.cpu.us_per_event


def _latencies(point: PointFigures) -> Iterator[str]:
    yield f"  {'ms':8} {'':20}" + "".join(f"{name:>10}" for name in ("p50", "p90", "p95", "p99", "max"))
    for label, figure in LATENCIES:
        for server in point.servers:
            if quantiles := server.quantiles(figure):
                cells = (quantiles.p50, quantiles.p90, quantiles.p95, quantiles.p99, quantiles.max)
                yield f"  {label:9}{server.name[:20]:20}" + "".join(f"{words.ms(value):>10}" for value in cells)
                label = ""


def _failures(point: PointFigures) -> Iterator[str]:
    for server in point.servers:
        if server.failures:
            example = next(figures.example for figures in server.rounds if figures.failures)
            yield f"  failed, {server.name}: {words.failures(server.failures, example)}"


def _ratio(point: PointFigures, figure: Callable[[RoundFigures], float | None] | None = None) -> str:
    if len(point.servers) < 2:
        return ""
    if figure is None:
        return words.ratio(point.ratio(lambda server: server.tokens_per_s))
    return words.ratio(point.ratio(lambda server: server.median(figure)))


def _cpu(server: ServerFigures, share: Callable[[RoundFigures], float]) -> str:
    value = server.median(share)
    return words.NONE if value is None else words.percent(value)


def _row(label: str, cells: list[str], last: str = "") -> str:
    return (f"{label:{LABEL}}" + "".join(f"{cell:>{CELL}}" for cell in cells) + f"{last:>9}").rstrip()
