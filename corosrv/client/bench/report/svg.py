"""Writes SVG: as much as two kinds of plots need. Readable on light and dark, inline in a page or as a file."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

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
