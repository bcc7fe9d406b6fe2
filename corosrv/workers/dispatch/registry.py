"""Registers handlers that can be called, the hosts that serve them, and the pools that may start more.

`look_up` finds the handler that a call is for: a model by name and version (`default_card` where the call names none),
or the best match of a capability query.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from corosrv.base.errors import Conflict, NotFound, NoWorker
from corosrv.contracts.jobs.infer import CapabilityTarget, HandlerCard, ModelTarget, Target
from corosrv.workers.dispatch.capability import parse_preferences, parse_query, weigh
from corosrv.workers.dispatch.entries import LINGER, QUARANTINED, HandlerEntry, HostGroup, PoolStanding, differs
from corosrv.workers.dispatch.host import HandlerHost

log = logging.getLogger("corosrv.dispatch")

_RUNS = re.compile(r"[0-9]+|[^0-9]+")
MAX_DIGITS = 18  # of a run that is read as a number; a longer one is compared as text


def natural_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Returns a key by which versions sort as people count: v9 before v10."""
    return tuple(
        (0, int(run), run) if run.isdigit() and len(run) <= MAX_DIGITS else (1, 0, run)
        for run in _RUNS.findall(version)
    )


def default_card(cards: Iterable[HandlerCard]) -> HandlerCard | None:
    """Returns what a call without a version gets: the unversioned card, one marked as default, or the highest."""
    return max(cards, key=lambda card: (not card.version, card.is_default, natural_order(card.version)), default=None)


class Registry:
    """Maps keys to entries. Every change is one step: nobody sees half of one. Nothing waits; the time is passed in.

    A host is known by its id and its incarnation. What belongs to an older incarnation changes nothing.
    """

    def __init__(self) -> None:
        self._entries: dict[str, HandlerEntry] = {}
        self._versions: dict[str, dict[str, HandlerEntry]] = {}  # of models, by name
        self._hosts: dict[str, tuple[HandlerHost, list[HostGroup]]] = {}  # by id
        self._stale_at = math.inf  # when the next entry has lingered long enough

    # Hosts.

    def add(self, host: HandlerHost, now: float) -> bool:
        """Adds all handlers of a host, in place of those of its earlier incarnation.

        Returns False, and changes nothing, if this incarnation or a later one is known.
        """
        known = self._hosts.get(host.id)
        if known is not None:
            if known[0].incarnation >= host.incarnation:
                return False
            self._leave(known[1])
        groups = [HostGroup(host, group) for group in host.groups]
        self._hosts[host.id] = (host, groups)
        for group in groups:
            for position in group.group.handlers:
                self._offer(group, position, host.handlers[position])
            self._share_ledger(group)
        self._mark_left(now)
        return True

    def remove(self, host: HandlerHost, now: float) -> bool:
        """Removes what this incarnation of a host offers, and nothing else. Returns False if another is known."""
        known = self._hosts.get(host.id)
        if known is None or known[0].incarnation != host.incarnation:
            return False
        del self._hosts[host.id]
        self._leave(known[1])
        self._mark_left(now)
        return True

    def groups_of(self, host: HandlerHost) -> Sequence[HostGroup]:
        """Returns the groups of a host; nothing if it is not the known incarnation."""
        known = self._hosts.get(host.id)
        return known[1] if known is not None and known[0].incarnation == host.incarnation else ()

    def groups_at(self, host_id: str) -> Sequence[HostGroup]:
        """Returns the groups of whichever incarnation of a host is known."""
        known = self._hosts.get(host_id)
        return () if known is None else known[1]

    def _offer(self, group: HostGroup, position: int, card: HandlerCard) -> None:
        entry = self._entry(card)
        if entry.groups:
            if difference := differs(entry.card, card):
                log.warning(
                    "%s of worker %s is not served: its %s differ from what other workers declare",
                    entry.key, group.host.id, difference,
                )  # fmt: skip
                return
            if any(other.host.id == group.host.id for other in entry.groups):
                log.warning("%s of worker %s is offered twice; the first is served", entry.key, group.host.id)
                return
        entry.card = card
        entry.left_at = None
        entry.groups.append(group)
        group.entries[entry.key] = (entry, position)

    def _share_ledger(self, group: HostGroup) -> None:
        """Gives all handlers of a group one ledger, for good: those who call any of them compete."""
        ledgers = list(dict.fromkeys(entry.ledger for entry, _ in group.entries.values()))
        for ledger in ledgers[1:]:
            ledgers[0].absorb(ledger)
            for entry in self._entries.values():
                if entry.ledger is ledger:
                    entry.ledger = ledgers[0]

    def _leave(self, groups: Iterable[HostGroup]) -> None:
        for group in groups:
            group.is_registered = False
            for entry, _ in group.entries.values():
                entry.groups.remove(group)

    # Pools.

    def expect(self, pool: str, cards: Iterable[HandlerCard], standing: PoolStanding, now: float) -> None:
        """Says what a pool offers when it has workers. Without a worker, calls wait if it can start one.

        Replaces what was said of this pool before.
        """
        self._forget(pool)
        for card in cards:
            entry = self._entry(card)
            entry.pools[pool] = standing
            entry.left_at = None
        self._mark_left(now)

    def forget(self, pool: str, now: float) -> None:
        """Ends the expectation of a pool; its hosts stay until they are removed."""
        self._forget(pool)
        self._mark_left(now)

    def _forget(self, pool: str) -> None:
        for entry in self._entries.values():
            entry.pools.pop(pool, None)

    # Entries.

    def __iter__(self) -> Iterator[HandlerEntry]:
        return iter(self._entries.values())

    def get(self, key: str) -> HandlerEntry | None:
        return self._entries.get(key)

    def versions(self, name: str) -> dict[str, HandlerEntry]:
        """Returns the entries of a model by their versions; empty if there is no such model."""
        return self._versions.get(name, {})

    def capabilities(self) -> Iterator[HandlerEntry]:
        return (entry for entry in self._entries.values() if entry.card.capability is not None)

    def purge(self, now: float) -> list[str]:
        """Removes the entries that nobody has offered for LINGER seconds, and returns their keys."""
        if now < self._stale_at:
            return []
        keys = [
            key for key, entry in self._entries.items() if entry.left_at is not None and now >= entry.left_at + LINGER
        ]
        for key in keys:
            card = self._entries.pop(key).card
            if card.capability is None:
                versions = self._versions[card.name]
                del versions[card.version]
                if not versions:
                    del self._versions[card.name]
        times = [entry.left_at + LINGER for entry in self._entries.values() if entry.left_at is not None]
        self._stale_at = min(times, default=math.inf)
        return keys

    def _entry(self, card: HandlerCard) -> HandlerEntry:
        key = card.key
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = HandlerEntry(key, card)
            if card.capability is None:
                self._versions.setdefault(card.name, {})[card.version] = entry
        return entry

    def _mark_left(self, now: float) -> None:
        for entry in self._entries.values():
            if entry.left_at is None and not entry.groups and not entry.pools:
                entry.left_at = now
                self._stale_at = min(self._stale_at, now + LINGER)


UNVERSIONED = "1"  # under which the repository's index lists a model that has no versions
RETRY_AFTER = 2  # seconds; about what a worker needs to start


def look_up(registry: Registry, target: Target) -> HandlerEntry:
    """Returns the entry that a call would get, whether it is ready or not.

    Raises NotFound; for a capability also Conflict, and Refused for a wrong query.
    """
    if isinstance(target, ModelTarget):
        return _find_model(registry, target)
    return _find_capability(registry, target)


def check_ready(entry: HandlerEntry, now: float) -> None:
    """Raises Unavailable if no worker serves the entry and none may be started for it, or if it is in quarantine."""
    if not entry.quarantine.admits(now):
        raise _quarantined(entry, now)
    if not entry.is_callable:
        raise unavailable(entry, now)


def unavailable(entry: HandlerEntry, now: float) -> NoWorker:
    """Makes the refusal of a call that no worker can take, now or soon."""
    if entry.quarantine.is_closed:
        return _quarantined(entry, now)
    error = NoWorker(f"{name_of(entry)} cannot be called now: {entry.reason}")
    error.retry_after = RETRY_AFTER if entry.retry_after is None else math.ceil(entry.retry_after)
    return error


def _quarantined(entry: HandlerEntry, now: float) -> NoWorker:
    seconds = math.ceil(entry.quarantine.pause_left(now))
    error = NoWorker(f"{name_of(entry)} cannot be called now: {QUARANTINED}; try again in {seconds} s")
    error.retry_after = seconds
    return error


def name_of(entry: HandlerEntry) -> str:
    """Returns the words that name a handler to a client."""
    version = f" version '{entry.card.version}'" if entry.card.version else ""
    kind = "model" if entry.card.capability is None else "capability"
    return f"the {kind} '{entry.card.name}'{version}"


def _find_model(registry: Registry, target: ModelTarget) -> HandlerEntry:
    versions = registry.versions(target.name)
    if not versions:
        raise NotFound(f"the model '{target.name[:120]}' does not exist here", "model_name", "model_not_found")
    if target.version:
        entry = versions.get(target.version)
        if entry is None and target.version == UNVERSIONED:
            entry = versions.get("")
        if entry is None:
            raise NotFound(
                f"the model '{target.name[:120]}' has no version '{target.version[:40]}'; {_list(versions)}",
                "model_version",
                "model_not_found",
            )
        return entry
    if len(versions) == 1:
        return next(iter(versions.values()))
    # What only lingers is not the default while something else is offered.
    offered = [entry.card for entry in versions.values() if entry.left_at is None]
    card = default_card(offered or [entry.card for entry in versions.values()])
    assert card is not None
    return versions[card.version]


def _list(versions: dict[str, HandlerEntry]) -> str:
    names = sorted(filter(None, versions), key=natural_order)
    return f"it has {', '.join(names[:20])}" if names else "it has no versions"


def _find_capability(registry: Registry, target: CapabilityTarget) -> HandlerEntry:
    query = parse_query(target.query)
    preferences = parse_preferences(target.prefer)
    matches = [entry for entry in registry.capabilities() if query.matches(entry.card.capability or {})]
    if not matches and target.is_fuzzy:
        matches = [entry for entry in registry.capabilities() if query.matches(entry.card.capability or {}, True)]
        _check_single(matches)
    if not matches:
        raise NotFound("no capability here satisfies the query", "capability", "capability_not_found")

    def rank(entry: HandlerEntry) -> tuple[object, ...]:
        capability = entry.card.capability or {}
        return (
            not entry.is_callable,
            -weigh(preferences, capability),
            entry.card.priority,
            query.count_extra(capability),
            not entry.has_free,
            entry.load,
            entry.turn,
        )

    return min(matches, key=rank)


def _check_single(matches: Sequence[HandlerEntry]) -> None:
    """Raises Conflict for several fuzzy matches: nobody may be served what was not asked for."""
    if len(matches) > 1:
        names = " and ".join(f"{entry.card.name!r} ({entry.key.removeprefix('cap:')})" for entry in matches[:2])
        raise Conflict(f"the fuzzy query is satisfied by {names}, which differ", "capability", "ambiguous")
