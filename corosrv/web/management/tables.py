"""Makes tables for people from the values of the management API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]

WIDEST = 60  # characters of a cell


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Returns lines with a head, as wide as the content needs."""
    cells = [[head for head, _ in columns]] + [[_cut(show(row)) for _, show in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def duration(milliseconds: float | None) -> str:
    """Words a time: `850ms`, `12s`, `5m`, `3h`, `2d`; `-` for none."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f}ms"
    for unit, length, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def megabytes(n_bytes: float) -> str:
    """Words an amount of memory; `-` for none."""
    return f"{n_bytes / 1e6:.0f}MB" if n_bytes else "-"


def workers_table(workers: Sequence[Row]) -> str:
    """Returns a line for each worker process."""
    columns: list[Column] = [
        ("WORKER", lambda row: row["id"]),
        ("STATE", lambda row: row["state"] + (" (to be replaced)" if row["is_outgoing"] else "")),
        ("PID", lambda row: str(row["pid"] or "-")),
        ("AGE", lambda row: duration(row["age_ms"])),
        ("BUSY", lambda row: f"{row['in_flight']}/{row['concurrency']}"),
        ("SERVED", lambda row: str(row["served"])),
        ("FAILED", lambda row: str(row["failed"])),
        ("RESTARTS", lambda row: str(row["restarts"])),
        ("MEMORY", lambda row: megabytes(row["rss"])),
        ("REASON", lambda row: row["reason"]),
    ]
    return table(columns, workers)


def pools_table(pools: Sequence[Row]) -> str:
    """Returns a line for each pool, and under it what the planner says."""
    columns: list[Column] = [
        ("POOL", lambda row: row["name"]),
        ("READY", lambda row: f"{row['workers'].get('ready', 0)}/{row['target']}"),
        ("MIN", lambda row: str(row["min"])),
        ("MAX", lambda row: str(row["max"])),
        ("WAITING", lambda row: str(row["depth"])),
        ("OLDEST", lambda row: duration(row["oldest_ms"] or None)),
        ("DECISION", lambda row: row["decision"]),
    ]
    return table(columns, pools)


def upstreams_table(upstreams: Sequence[Row]) -> str:
    """Makes a table with a line for each upstream."""
    columns: list[Column] = [
        ("UPSTREAM", lambda row: row["id"]),
        ("URL", lambda row: row["url"]),
        ("STATE", lambda row: row["state"]),
        ("BUSY", lambda row: f"{row['in_flight']}/{row['concurrency']}"),
        ("OK", lambda row: str(row["ok"])),
        ("FAILED", lambda row: str(sum(row["failed"].values()))),
        ("ABORTED", lambda row: str(row["aborted"])),
        ("FIRST BYTE", lambda row: duration(row["first_byte_ms"])),
        ("MODELS", lambda row: ", ".join(row["models"])),
        ("REASON", lambda row: row["reason"]),
    ]
    return table(columns, upstreams)


def queues_table(queues: Sequence[Row]) -> str:
    """Returns a line for each queue."""
    columns: list[Column] = [
        ("QUEUE", lambda row: row["key"]),
        ("STATE", lambda row: row["state"].lower()),
        ("WAITING", lambda row: f"{row['depth']}/{row['max_depth']}"),
        ("OLDEST", lambda row: duration(row["oldest_ms"])),
        ("RUNNING", lambda row: f"{row['in_flight']}/{row['permits']}"),
        ("WAIT", lambda row: duration(row["wait_ewma_ms"])),
        ("SERVICE", lambda row: duration(row["service_ewma_ms"])),
    ]
    return table(columns, queues)
