"""Reads from the dispatcher's numbers what is asked of a pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.dispatch.host import HandlerHost
from corosrv.workers.dispatch.stats import KeyStats
from corosrv.workers.manager.snapshot import GroupSnapshot


def group_snapshots(
    handlers: Sequence[HandlerCard], stats: Mapping[str, KeyStats], hosts: Iterable[HandlerHost]
) -> tuple[GroupSnapshot, ...]:
    """Returns what is asked of each group of a pool's handlers. `stats`: by key. `hosts`: the ready ones."""
    hosts = tuple(hosts)
    numbers = sorted({handler.group for handler in handlers})
    return tuple(
        _snapshot([handler for handler in handlers if handler.group == number], stats, _in_use(number, hosts))
        for number in numbers
    )


def _in_use(number: int, hosts: Iterable[HandlerHost]) -> int:
    return sum(
        group.permits.in_use
        for host in hosts
        for group in host.groups
        if any(host.handlers[position].group == number for position in group.handlers)
    )


def _snapshot(handlers: Sequence[HandlerCard], stats: Mapping[str, KeyStats], in_use: int) -> GroupSnapshot:
    known = [stats[handler.key] for handler in handlers if handler.key in stats]
    # Where calls wait, theirs is the time that counts.
    pressed = [key for key in known if key.depth] or known
    depth = sum(key.depth for key in known)
    work = sum(key.depth * (key.service_mean or 0.0) for key in known)
    return GroupSnapshot(
        handlers[0].name or handlers[0].key,
        max(handlers[0].concurrency, 1),
        depth,
        max((key.oldest or 0.0 for key in known), default=0.0),
        work / depth if depth else 0.0,
        min((key.slo for key in pressed), default=handlers[0].slo_ms / 1000),
        in_use,
        sum(key.services.sum for key in known),
    )
