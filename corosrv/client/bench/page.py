"""The report as one HTML page that needs nothing else: plots, tables, commands, machine."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from corosrv.client.bench import plots, words
from corosrv.client.bench.report import PointFigures, Report, Section, ServerFigures
from corosrv.client.bench.words import LATENCIES, RATES

STYLE = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#ffffff;--ink:#1c2330;--soft:#667085;--rule:#e4e7ec;
--a:#2f6db5;--b:#a86a1f}
@media (prefers-color-scheme:dark){:root{--paper:#0d1016;--card:#14181f;--ink:#e6e9ef;--soft:#98a2b3;--rule:#2a313c;
--a:#6aa5e6;--b:#e0aa66}}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:800px;margin:0 auto;padding:40px 20px 64px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:48px 0 6px}h3{font-size:15px;margin:24px 0 6px}
p{margin:6px 0}.soft,figcaption,li{color:var(--soft);font-size:13px}
figure{margin:16px 0;background:var(--card);border:1px solid var(--rule);border-radius:10px;overflow:hidden}
figure svg{display:block;width:100%;height:auto}
code{display:block;font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;
overflow-wrap:anywhere;background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:8px 12px;
margin:8px 0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:500;white-space:normal}th:first-child,td:first-child{text-align:left}
.a{color:var(--a);font-weight:600}.b{color:var(--b);font-weight:600}.bad{color:#c0392b}ul{padding-left:18px}
"""


def page(report: Report, head: str = "") -> str:
    """Writes the whole page; `head` is HTML that stands before the sections."""
    title = " and ".join(dict.fromkeys(name for section in report.sections for name in _names(section)))
    body = "".join(part for section in report.sections for part in _section(section))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} under load</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head><body><main>'
        f'<h1>{escape(title)} under load</h1><p class="soft">{escape(words.machine(report.machine))} '
        f'<span class="bad">{escape(words.doubts(report.machine))}</span></p>'
        f"{head}{body}</main></body></html>\n"
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    """Writes a table of cells that are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>"
    yield f"<p>{words.size(section)}</p><code>{escape(section.command)}</code>"
    for plot in plots.section_plots(section).values():
        yield f"<figure>{plot}</figure>"
    for point in section.points:
        if any(server.rounds for server in point.servers):
            yield from _point(point, section.unit)
    for line in words.goodput(section):
        yield f"<p><strong>{escape(line)}</strong></p>"
    yield "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in words.notes(section)) + "</ul></section>"


def _point(point: PointFigures, unit: str) -> Iterator[str]:
    yield f"<h3>{escape(point.label)}, {words.count(point.requests, unit)} a round</h3>"
    yield table(["", *map(_name, point.servers, "ab"), *_if_two(point, "ratio")], list(_rates(point)))
    yield table(["ms", "", "p50", "p90", "p95", "p99", "max"], list(_latencies(point)))


def _rates(point: PointFigures) -> Iterator[list[str]]:
    servers = point.servers
    ratio = words.ratio(point.ratio(lambda server: server.tokens_per_s))
    yield ["tokens/s", *(words.number(server.tokens_per_s) for server in servers), *_if_two(point, ratio)]
    yield ["slowest to fastest round", *(" to ".join(map(words.number, server.spread)) for server in servers),
           *_if_two(point, "")]  # fmt: skip
    for label, figure in RATES:
        if all(server.median(figure) is None for server in servers):
            continue
        ratio = words.ratio(point.ratio(lambda server, figure=figure: server.median(figure)))  # type: ignore[misc]
        yield [label.strip(), *(words.number(server.median(figure)) for server in servers), *_if_two(point, ratio)]
    yield ["client CPU, share of a core", *map(_cpu, servers), *_if_two(point, "")]
    yield ["failed", *map(_failed, servers), *_if_two(point, "")]


def _latencies(point: PointFigures) -> Iterator[list[str]]:
    for label, figure in LATENCIES:
        for server, kind in zip(point.servers, "ab", strict=False):
            if quantiles := server.quantiles(figure):
                values = (quantiles.p50, quantiles.p90, quantiles.p95, quantiles.p99, quantiles.max)
                yield [label, _name(server, kind), *map(words.ms, values)]


def _name(server: ServerFigures, kind: str) -> str:
    return f'<span class="{kind}">{escape(server.name)}</span>'


def _cpu(server: ServerFigures) -> str:
    value = server.median(lambda figures: figures.cpu.core)
    return words.NONE if value is None else words.percent(value)


def _failed(server: ServerFigures) -> str:
    text = escape(words.failures(server.failures))
    return f'<span class="bad">{text}</span>' if server.failures else text


def _if_two(point: PointFigures, cell: str) -> list[str]:
    return [cell] if len(point.servers) > 1 else []


def _names(section: Section) -> list[str]:
    return plots.names(section) if section.points else []
