"""The report as text for a terminal, and figures as people read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from corosrv.client.bench.figures import Quantiles, RoundFigures
from corosrv.client.bench.report import Machine, PointFigures, Section, ServerFigures

NONE = "-"
BUSY_LOAD = 0.5  # waiting or running tasks for each core


def number(value: float | None) -> str:
    """Writes a number with about three digits."""
    if value is None:
        return NONE
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def ms(seconds: float | None) -> str:
    return NONE if seconds is None else number(1000 * seconds)


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def count(n: int, thing: str) -> str:
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"


def times(value: float | None) -> str:
    """Writes a ratio, or nothing."""
    return "" if value is None else f"{value:.2f} x"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def failures(counts: dict[str, int], example: str = "") -> str:
    """Writes the failures as `3 (2 timeout, 1 HTTP 500: out of memory)`, or `0`."""
    kinds = ", ".join(f"{n} {label}" for label, n in sorted(counts.items()))
    return f"{sum(counts.values())} ({kinds}{f': {example}' if example else ''})" if counts else "0"


def machine(machine: Machine) -> str:
    parts = (
        machine.processor,
        count(machine.cores, "core"),
        f"{machine.memory / 2**30:.0f} GiB",
        machine.system,
        f"Python {machine.python}",
        f"corosrv {machine.corosrv}",
        f"llama-cpp-python {machine.libllama}" if machine.libllama else "",
        machine.taken,
    )
    return ", ".join(filter(None, parts))


def doubts(machine: Machine) -> str:
    """Returns a reason to doubt all figures of a machine; empty if there is none."""
    if machine.load_average < BUSY_LOAD * machine.cores:
        return ""
    return (
        f"The machine was busy before: a load average of {machine.load_average:.1f} on {count(machine.cores, 'core')}."
    )


def size(section: Section) -> str:
    tokens = "as long as recorded" if section.mix == "trace" else f"{count(section.tokens, 'token')} each"
    turns = f"{section.turns} turns, " if section.turns > 1 else ""
    return f"{turns}{tokens}, {count(section.rounds, 'round')}"


def notes(section: Section) -> list[str]:
    """Returns the notes that a reader of a section needs: how figures were taken, and reasons to doubt them."""
    servers = [server for point in section.points for server in point.servers if server.rounds]
    lines = [line for server in servers for line in _doubts(server)]
    return list(dict.fromkeys((*_method(section, servers), *lines)))


def _method(section: Section, servers: list[ServerFigures]) -> list[str]:
    lines = [
        "Each figure is the median of the rounds' figures, max is the worst of all; ratios are of medians.",
        "TTFT counts from the beginning of the request, connecting included; with a rate, from when it was due.",
        "ITL is the time between two reads that brought text; tokens that come in one read are one arrival.",
    ]
    if section.limits:
        lines.append(f"In limits is what ended well with {section.limits} at most; ITL is each stream's mean here.")
    if section.mix == "arrivals":
        lines.append("ITL is that of the running streams, from when the first long prompt is due to the last's answer.")
    if section.is_interrupted:
        lines.append("Interrupted: the figures are of what was done until then.")
    if any(each.counted_by != "usage" for server in servers for each in server.rounds):
        lines.append("Some tokens are counted by events, because a stream had no usage: there may have been more.")
    if not section.is_forced:
        lines.append("The length of answers was left to the model: streams may have stopped early.")
    return lines


def _doubts(server: ServerFigures) -> list[str]:
    stops = sum(each.early_stops for each in server.rounds)
    lines = (
        [f"{server.name}: {count(stops, 'stream')} stopped before the asked length; rates compare less."]
        if stops
        else []
    )
    busiest = max(server.rounds, key=lambda each: each.cpu.core).cpu
    if busiest.is_limit:
        lines.append(
            f"{server.name}: this client used {percent(busiest.core)} of a core and may be the limit: use --processes."
        )
    return lines


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
    lines = [f"{section.title}; {size(section)}", ""]
    for point in section.points:
        if any(server.rounds for server in point.servers):
            lines += [*_point(point, section.unit), ""]
    return "\n".join((*lines, *goodput(section), *notes(section))) + "\n"


def goodput(section: Section) -> Iterator[str]:
    """Yields a sentence for each server whose goodput was looked for."""
    for name, rate in section.goodput.items():
        found = f"{number(rate)} requests/s" if rate else "none of the rates that were tried"
        yield f"Goodput of {name}: {found}, 99 % within {section.limits}."


def _point(point: PointFigures, unit: str) -> Iterator[str]:
    title = f"{point.label} ({count(point.requests, unit)})"
    yield _row(title, [server.name for server in point.servers], "ratio" if len(point.servers) > 1 else "")
    yield _row("  tokens/s", [number(server.tokens_per_s) for server in point.servers], _ratio(point))
    yield _row("    slowest-fastest round", ["-".join(map(number, server.spread)) for server in point.servers])
    for label, figure in RATES:
        if all(server.median(figure) is None for server in point.servers):
            continue
        yield _row(label, [number(server.median(figure)) for server in point.servers], _ratio(point, figure))
    yield _row("  client CPU of a core", [_cpu(server, lambda figures: figures.cpu.core) for server in point.servers])
    yield _row("    of the machine", [_cpu(server, lambda figures: figures.cpu.machine) for server in point.servers])
    yield _row(
        "    us an event", [number(server.median(lambda figures: figures.cpu.us_per_event)) for server in point.servers]
    )
    yield from _failures(point)
    yield from _latencies(point)


RATES: tuple[tuple[str, Callable[[RoundFigures], float | None]], ...] = (
    ("  tokens/s of a stream", lambda figures: figures.stream_tokens_per_s),
    ("  requests/s", lambda figures: figures.requests_per_s),
    ("  requests/s in limits", lambda figures: figures.goodput),
    ("  seconds a round", lambda figures: figures.seconds),
    ("  tokens in one read", lambda figures: figures.tokens_per_arrival),
)


def _latencies(point: PointFigures) -> Iterator[str]:
    yield f"  {'ms':8} {'':20}" + "".join(f"{name:>10}" for name in ("p50", "p90", "p95", "p99", "max"))
    for label, figure in LATENCIES:
        for server in point.servers:
            if quantiles := server.quantiles(figure):
                cells = (quantiles.p50, quantiles.p90, quantiles.p95, quantiles.p99, quantiles.max)
                yield f"  {label:9}{server.name[:20]:20}" + "".join(f"{ms(value):>10}" for value in cells)
                label = ""


def _failures(point: PointFigures) -> Iterator[str]:
    for server in point.servers:
        if server.failures:
            example = next(figures.example for figures in server.rounds if figures.failures)
            yield f"  failed, {server.name}: {failures(server.failures, example)}"


def _ratio(point: PointFigures, figure: Callable[[RoundFigures], float | None] | None = None) -> str:
    if len(point.servers) < 2:
        return ""
    if figure is None:
        return ratio(point.ratio(lambda server: server.tokens_per_s))
    return ratio(point.ratio(lambda server: server.median(figure)))


def _cpu(server: ServerFigures, share: Callable[[RoundFigures], float]) -> str:
    value = server.median(share)
    return NONE if value is None else percent(value)


def _row(label: str, cells: list[str], last: str = "") -> str:
    return (f"{label:{LABEL}}" + "".join(f"{cell:>{CELL}}" for cell in cells) + f"{last:>9}").rstrip()
