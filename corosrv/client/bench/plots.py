"""The plots of a report as SVG: bars of tokens a second, and curves of TTFT and ITL up to their tails.

They are readable on light and dark, inline in a page or as a file. Scales turn values into places, and find round
numbers to mark an axis with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import ClassVar

from corosrv.client.bench import words
from corosrv.client.bench.figures import CURVE
from corosrv.client.bench.report import PointFigures, Report, Section, ServerFigures


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A linear scale: values from 0 to `top`, places from `start` to `end`."""

    top: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * value / self.top

    def ticks(self, n: int = 5) -> list[float]:
        """Returns round numbers, about `n` of them."""
        rough = self.top / n
        power = 10.0 ** math.floor(math.log10(rough))
        step = min((power * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda step: abs(step - rough))
        return [i * step for i in range(int(self.top / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic scale from `low` to `high`, both above zero."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        """Powers of ten, with 2 and 5 between them where there are few."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            ticks = [factor * 10.0**power for power in powers for factor in factors]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) >= 3:
                break
        return ticks


@dataclass(frozen=True, slots=True)
class TailScale:
    """A scale for shares of samples that shows the slow ones: each step between two of KNOTS takes equal room."""

    KNOTS: ClassVar[tuple[float, ...]] = (0.0, 0.5, 0.9, 0.99, 0.999)

    start: float
    end: float

    def __call__(self, share: float) -> float:
        for i, (low, high) in enumerate(pairwise(self.KNOTS)):
            if share <= high:
                part = (share - low) / (high - low)
                return self.start + (self.end - self.start) * (i + part) / (len(self.KNOTS) - 1)
        return self.end


Point = tuple[float, float]

# Classes instead of attributes, so that one rule turns a plot dark where the reader's system is. `a` and `b` are the
# two servers; the names begin with `p-`, because inline they share a page with others.
STYLE = """
.p-paper{fill:#ffffff}.p-ink{fill:#1c2330}.p-soft{fill:#667085}
.p-grid{stroke:#e4e7ec;stroke-width:1}.p-axis{stroke:#98a2b3;stroke-width:1}
.p-a{fill:#2f6db5}.p-b{fill:#c98a3d}
.p-line{fill:none;stroke-width:2;stroke-linejoin:round}.p-line.p-a{stroke:#2f6db5;fill:none}
.p-line.p-b{stroke:#c98a3d;fill:none}.p-range{stroke:#1c2330;stroke-width:1;opacity:.55}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;
font-variant-numeric:tabular-nums}
@media (prefers-color-scheme:dark){
.p-paper{fill:#14181f}.p-ink{fill:#e6e9ef}.p-soft{fill:#98a2b3}
.p-grid{stroke:#2a313c}.p-axis{stroke:#667085}
.p-a{fill:#6aa5e6}.p-b{fill:#e0aa66}
.p-line.p-a{stroke:#6aa5e6}.p-line.p-b{stroke:#e0aa66}.p-range{stroke:#e6e9ef}}
"""


class Drawing:
    """Elements in the order in which they are drawn; `title` is for those who cannot see it."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._elements: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> None:
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        self._elements.append(
            f'<rect class="p-{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}" rx="2">'
            f"{inner}</rect>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self._elements.append(f'<line class="p-{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def path(self, points: Iterable[Point], kind: str) -> None:
        steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._elements.append(f'<polyline class="p-line p-{kind}" points="{steps}"/>')

    def dot(self, x: float, y: float, kind: str, tip: str = "") -> None:
        self._elements.append(
            f'<circle class="p-{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{escape(tip)}</title></circle>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "ink",
        anchor: str = "start",
        size: int = 12,
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._elements.append(
            f'<text class="p-{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight}>'
            f"{escape(text)}</text>"
        )

    def __str__(self) -> str:
        size = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}" width="{self.width:.0f}" height="{self.height:.0f}"'
        paper = f'<rect class="p-paper" width="{self.width:.0f}" height="{self.height:.0f}" rx="8"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self._title)}">'
            f"<style>{STYLE}</style>{paper}\n" + "\n".join(self._elements) + "\n</svg>\n"
        )


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
    box = Box(MARGIN + LEFT, HEAD + 20, WIDTH - MARGIN, 340 - 56)
    highs = (bar.high for group in groups for bar in group.bars if bar)
    drawing, scale = _with_axis(title, subtitle, servers, box, highs)
    step = (box.right - box.left) / max(len(groups), 1)
    for i, group in enumerate(groups):
        _group(drawing, group, box.left + step * (i + 0.5), step, scale)
        drawing.text(box.left + step * (i + 0.5), box.bottom + 20, group.label, anchor="middle")
        drawing.text(box.left + step * (i + 0.5), box.bottom + 38, group.remark, "a", "middle", 13, bold=True)
    drawing.line(box.left, box.bottom, box.right, box.bottom, "axis")
    return str(drawing)


def history(subtitle: str, series: dict[str, list[tuple[str, float]]]) -> str:
    """Draws a line for each series through its values, from the oldest to the newest, each with what it is of."""
    title = "Tokens a second, run by run"
    box = Box(MARGIN + LEFT, HEAD + 20, WIDTH - MARGIN - 150, 340 - 36)
    drawing, scale = _with_axis(title, subtitle, [], box, (value for values in series.values() for _, value in values))
    for i, (name, values) in enumerate(series.items()):
        step = (box.right - box.left) / max(len(values) - 1, 1)
        places = [(box.left + step * j, scale(value)) for j, (_, value) in enumerate(values)]
        drawing.path(places, KINDS[i % 2])
        for place, (said, value) in zip(places, values, strict=True):
            drawing.dot(*place, KINDS[i % 2], f"{words.number(value)}: {name}, {said}")
        drawing.text(box.right + 10, places[-1][1] + 4, name, KINDS[i % 2], size=11)
    drawing.line(box.left, box.bottom, box.right, box.bottom, "axis")
    return str(drawing)


def _with_axis(
    title: str, subtitle: str, servers: list[str], box: Box, values: Iterable[float]
) -> tuple[Drawing, LinearScale]:
    """Begins a drawing with its head, and with a scale up to the largest value."""
    drawing = Drawing(WIDTH, 340, f"{title}: {subtitle}")
    _head(drawing, title, subtitle, servers)
    scale = LinearScale(1.1 * (max(values, default=0.0) or 1.0), box.bottom, box.top)
    for tick in scale.ticks():
        drawing.line(box.left, scale(tick), box.right, scale(tick), "grid")
        drawing.text(box.left - 8, scale(tick) + 4, f"{tick:,g}", "soft", "end", 11)
    return drawing, scale


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
