"""Registers handlers that can be called, the hosts that serve them, and the pools that may start more."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence

from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.workers.dispatch.entries import LINGER, HandlerEntry, HostGroup, PoolStanding, differs
from corosrv.workers.dispatch.host import HandlerHost

log = logging.getLogger("corosrv.dispatch")


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
