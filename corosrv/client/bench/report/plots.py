"""The plots of a report: bars of tokens a second, and curves of TTFT and ITL up to their tails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from corosrv.client.bench.figures.stats import CURVE
from corosrv.client.bench.report import words
from corosrv.client.bench.report.document import PointFigures, Report, Section, ServerFigures
from corosrv.client.bench.report.scale import LinearScale, LogScale, TailScale
from corosrv.client.bench.report.svg import Drawing

KINDS = ("a", "b")  # of the first server and the second
WIDTH = 760.0
MARGIN = 20.0
HEAD = 64.0  # title and names
MARKED = (0.5, 0.99)  # shares whose values are written beside the curves
LEFT = 52.0  # room for the marks of an axis


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle to plot in."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One server's bar in a group."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that stand together: what they share, what is said about them, one for each server that has a value."""

    label: str
    remark: str
    bars: tuple[Bar | None, ...]


def plots(report: Report) -> dict[str, str]:
    """Draws every plot and returns them by name; those of a mix that occurs again are numbered."""
    svg_by_name: dict[str, str] = {}
    for i, section in enumerate(report.sections):
        name = section.mix if section.mix not in [other.mix for other in report.sections[:i]] else f"{section.mix}-{i}"
        svg_by_name |= {f"{name}-{kind}": plot for kind, plot in section_plots(section).items()}
    return svg_by_name


def section_plots(section: Section) -> dict[str, str]:
    if not any(server.rounds for point in section.points for server in point.servers):
        return {}
    return {
        "tokens": speed(section),
        "ttft": latency(section, "Time to first token", lambda server: server.ttft_curve),
        "itl": latency(section, "Time between tokens", lambda server: server.itl_curve),
    }


def speed(section: Section) -> str:
    """Tokens a second at each point: the median round, and thin lines from the slowest round to the fastest."""
    groups = [
        Group(
            point.label,
            words.times(point.ratio(lambda server: server.tokens_per_s)),
            tuple(Bar(server.tokens_per_s, *server.spread) if server.rounds else None for server in point.servers),
        )
        for point in section.points
    ]
    return bars("Tokens a second, all streams together", section.title, names(section), groups)


def bars(title: str, subtitle: str, servers: list[str], groups: list[Group]) -> str:
    """Draws a bar for each server in each group, with its value above it."""
    drawing = Drawing(WIDTH, 340, f"{title}: {subtitle}")
    _head(drawing, title, subtitle, servers)
    box = Box(MARGIN + LEFT, HEAD + 20, WIDTH - MARGIN, 340 - 56)
    top = max((bar.high for group in groups for bar in group.bars if bar), default=0.0) or 1.0
    scale = LinearScale(1.1 * top, box.bottom, box.top)
    for tick in scale.ticks():
        drawing.line(box.left, scale(tick), box.right, scale(tick), "grid")
        drawing.text(box.left - 8, scale(tick) + 4, f"{tick:,g}", "soft", "end", 11)
    step = (box.right - box.left) / max(len(groups), 1)
    for i, group in enumerate(groups):
        _group(drawing, group, box.left + step * (i + 0.5), step, scale)
        drawing.text(box.left + step * (i + 0.5), box.bottom + 20, group.label, anchor="middle")
        drawing.text(box.left + step * (i + 0.5), box.bottom + 38, group.remark, "a", "middle", 13, bold=True)
    drawing.line(box.left, box.bottom, box.right, box.bottom, "axis")
    return str(drawing)


def _group(drawing: Drawing, group: Group, middle: float, step: float, scale: LinearScale) -> None:
    width = min(64.0, 0.36 * step)
    left = middle - width * len(group.bars) / 2
    for j, bar in enumerate(group.bars):
        if bar is None:
            continue
        x = left + j * width
        tip = f"{words.number(bar.value)}, rounds from {words.number(bar.low)} to {words.number(bar.high)}"
        drawing.rect(x + 2, scale(bar.value), width - 4, scale(0) - scale(bar.value), KINDS[j], tip)
        if bar.high > bar.low:
            drawing.line(x + width / 2, scale(bar.low), x + width / 2, scale(bar.high), "range")
        drawing.text(x + width / 2, scale(bar.high) - 6, words.number(bar.value), anchor="middle", bold=True)


def latency(section: Section, title: str, curve: Callable[[ServerFigures], list[float]]) -> str:
    """Draws one panel for each point: how long it took (ms, logarithmic) up to which share of the samples."""
    columns = min(len(section.points), 4)
    rows = -(-len(section.points) // columns)
    drawing = Drawing(WIDTH, HEAD + 224 * rows + 12, f"{title}: {section.title}")
    _head(drawing, f"{title}, ms", f"{section.title}; share of samples that took at most so long", names(section))
    values = [value for point in section.points for server in point.servers for value in curve(server) if value > 0]
    low, high = (0.8 * min(values), 1.25 * max(values)) if values else (0.001, 1.0)
    width = (WIDTH - 2 * MARGIN) / columns
    for i, point in enumerate(section.points):
        left, top = MARGIN + width * (i % columns), HEAD + 224 * (i // columns)
        box = Box(left + LEFT, top + 28, left + width - 10, top + 192)
        drawing.text(box.left, top + 18, point.label, bold=True)
        _panel(drawing, box, point, LogScale(low, high, box.bottom, box.top), curve)
    return str(drawing)


def _panel(
    drawing: Drawing, box: Box, point: PointFigures, scale: LogScale, curve: Callable[[ServerFigures], list[float]]
) -> None:
    tail = TailScale(box.left, box.right)
    for tick in scale.ticks():
        drawing.line(box.left, scale(tick), box.right, scale(tick), "grid")
        drawing.text(box.left - 6, scale(tick) + 4, f"{1000 * tick:g}", "soft", "end", 10)
    for share in TailScale.KNOTS:
        drawing.line(tail(share), box.top, tail(share), box.bottom, "grid")
        drawing.text(tail(share), box.bottom + 16, f"{100 * share:g}%", "soft", "middle", 10)
    for kind, server in zip(KINDS, point.servers, strict=False):  # one server or two
        if values := curve(server):
            places = [(tail(share), scale(value)) for share, value in zip(CURVE, values, strict=True)]
            drawing.path(places, kind)
            for share in MARKED:
                drawing.dot(*places[CURVE.index(share)], kind, f"{server.name}: p{100 * share:g}")
    _values(drawing, point, curve, tail, scale)
    drawing.line(box.left, box.bottom, box.right, box.bottom, "axis")


def _values(
    drawing: Drawing,
    point: PointFigures,
    curve: Callable[[ServerFigures], list[float]],
    tail: TailScale,
    scale: LogScale,
) -> None:
    """Writes the median and p99 beside their dots: above the higher curve, below the lower one."""
    for share in MARKED:
        places = [
            (curve(server)[CURVE.index(share)], kind)
            for server, kind in zip(point.servers, KINDS, strict=False)
            if curve(server)
        ]
        for i, (value, kind) in enumerate(sorted(places, reverse=True)):
            drawing.text(tail(share), scale(value) + (-8 if i == 0 else 17), words.ms(value), kind, "middle", 11, True)


def _head(drawing: Drawing, title: str, subtitle: str, servers: list[str]) -> None:
    drawing.text(MARGIN, 28, title, size=16, bold=True)
    drawing.text(MARGIN, 48, subtitle, "soft")
    right = drawing.width - MARGIN
    for kind, name in reversed(list(zip(KINDS, servers, strict=False))):
        drawing.text(right, 28, name, kind, "end", 13, bold=True)
        right -= 8 * len(name) + 20


def names(section: Section) -> list[str]:
    return [server.name for server in section.points[0].servers]
