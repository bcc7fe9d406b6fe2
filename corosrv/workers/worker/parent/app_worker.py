"""The settings of app worker processes, and what they say of their pools and handlers, checked before it is believed.

`lane_groups` lays out the slots of handlers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.terms import FIRST_PRIORITY, LAST_PRIORITY
from corosrv.workers.dispatch.host import LaneGroup, PermitPool
from corosrv.workers.wire.calls import PROTOCOL, Loaded, PoolCard

JOINED = "joined"  # what workers that others have started are called, in place of a pool's name
MAX_SLOTS = 1024  # of one worker: each takes a descriptor on both sides


def fault_of_load(loaded: Loaded) -> str:
    """Returns what is wrong with an application's pools; empty if nothing is."""
    if loaded.protocol != PROTOCOL:
        return f"the worker speaks protocol {loaded.protocol}, and the server {PROTOCOL}"
    if not loaded.pools:
        return "the application has no handlers"
    names = [pool.name for pool in loaded.pools]
    if len(set(names)) < len(names) or "" in names:
        return f"the application's pools have the names {names}"
    if JOINED in names:
        return f"a pool cannot have the name {JOINED!r}, which is that of workers that join: rename the class"
    keys = [card.key for pool in loaded.pools for card in pool.handlers]
    if len(set(keys)) < len(keys):
        return f"{next(key for key in keys if keys.count(key) > 1)} is offered twice"
    return next(filter(None, map(_fault_of_pool, loaded.pools)), "")


def _fault_of_pool(pool: PoolCard) -> str:
    if not pool.handlers:
        return f"pool {pool.name!r} has no handlers"
    least, most = pool.min_workers, pool.max_workers
    if (least is not None and least < 0) or (most is not None and most < max(1, least or 0)):
        return f"pool {pool.name!r} wants {least} to {most} workers"
    if not (pool.gpus >= 0 and pool.memory_mb >= 0):  # NaN compares false
        return f"pool {pool.name!r} claims {pool.gpus} GPUs and {pool.memory_mb} MB"
    if fault := next(filter(None, map(_fault_of_card, pool.handlers)), ""):
        return fault
    by_group: dict[int, int] = {}
    for card in pool.handlers:
        if by_group.setdefault(card.group, card.concurrency) != card.concurrency:
            return f"the handlers of group {card.group} of pool {pool.name!r} have different concurrencies"
    n_slots = sum(by_group.values())
    return f"pool {pool.name!r} wants {n_slots} slots, and may have {MAX_SLOTS}" if n_slots > MAX_SLOTS else ""


def _fault_of_card(card: HandlerCard) -> str:
    if not card.name or card.concurrency < 1 or card.max_queue < 0 or card.group < 0:
        return (
            f"{card.key} has concurrency {card.concurrency}, a queue of {card.max_queue} and is in group {card.group}"
        )
    if not FIRST_PRIORITY <= card.priority <= LAST_PRIORITY:
        return f"{card.key} has priority {card.priority}"
    if card.batch is not None and (card.batch.max_size < 1 or not card.batch.max_delay_ms >= 0):
        return f"{card.key} gathers batches of {card.batch.max_size} for {card.batch.max_delay_ms} ms"
    return ""


def fault_of_registration(handlers: Sequence[HandlerCard], pool: PoolCard) -> str:
    """Returns how a worker's handlers differ from those that its pool was announced with; empty if they do not."""
    if list(handlers) == pool.handlers:
        return ""
    registered, announced = (sorted(card.key for card in cards) for cards in (handlers, pool.handlers))
    return (
        f"the worker registers {registered} for pool {pool.name!r}, which has {announced}, or describes them otherwise"
    )


def lane_groups(handlers: Iterable[HandlerCard]) -> tuple[LaneGroup, ...]:
    """Returns the groups of checked handlers; slots are numbered through them in their order."""
    by_group: dict[int, list[int]] = {}
    concurrency: dict[int, int] = {}
    for position, card in enumerate(handlers):
        by_group.setdefault(card.group, []).append(position)
        concurrency[card.group] = card.concurrency
    groups: list[LaneGroup] = []
    n_slots = 0
    for group, positions in sorted(by_group.items()):
        slots = range(n_slots, n_slots + concurrency[group])
        groups.append(LaneGroup(tuple(positions), PermitPool(slots)))
        n_slots = slots.stop
    return tuple(groups)


LEASE_EXPIRED = "no heartbeat came"  # how the reason of a worker begins whose lease has expired


@dataclass(frozen=True, kw_only=True)
class AppWorkerConfig:
    """Holds the settings of one app worker process; times are in seconds."""

    app_ref: str  # MODULE:ATTRIBUTE
    app_dir: str = ""
    is_factory: bool = False  # the attribute is a function that makes the application
    start_timeout_s: float = 120.0  # for the import and the start of the pool with its on_start together
    hang_grace_s: float = 10.0  # that a handler may go on after its cancel or its deadline
    lease_s: float = 10.0  # without a heartbeat, after which the worker is lost
    stop_grace_s: float = 10.0  # for on_stop
    env: Mapping[str, str] | None = None  # of the process, all of it; None: as the server's
    cwd: str | None = None
    command: tuple[str, ...] = (sys.executable, "-m", "corosrv.workers.worker.app")
