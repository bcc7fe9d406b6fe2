"""Names of the shared queue's keys in Redis, its bands of priorities, and the times after which a front is gone.

A key is `corosrv:{namespace}:kind:part:part`. Priorities share three bands; `BandTurns` decides which one the next
entries come from, so that low ones get their turn.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote

LOW_TURN = 10  # of so many entries that a front reads, one at least is a low one, if there is one


class Band(IntEnum):
    """Lists the bands, in the order in which they are read."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


def band_of(priority: int) -> Band:
    """Returns the band of a priority from 1 to 9."""
    return Band.HIGH if priority <= 3 else Band.NORMAL if priority <= 6 else Band.LOW


class BandTurns:
    """Counts the entries that a front reads, so that low ones get their turn."""

    def __init__(self) -> None:
        self._n_since_low = 0

    def n_low(self, n_entries: int) -> int:
        """Returns how many of the next entries should be low ones, before all others."""
        return (self._n_since_low + n_entries) // LOW_TURN

    def count(self, bands: list[Band]) -> None:
        """Counts entries that were read."""
        n_low = bands.count(Band.LOW)
        self._n_since_low = 0 if n_low else self._n_since_low + len(bands)


_LONGEST_PART = 200  # bytes of one part as it stands; a longer one is hashed


class KeyNames:
    """Makes the names of all that the servers of one namespace keep in Redis.

    The braces around the namespace put all of it into one slot of a Redis cluster, so that scripts may use several.
    """

    def __init__(self, namespace: str) -> None:
        self._prefix = f"corosrv:{{{namespace}}}:"

    def name(self, kind: str, *parts: str) -> str:
        """Returns the name of one kind of thing, whatever characters its parts have; names of different parts differ.

        A part of more than 200 bytes stands there as its hash.
        """
        return self._prefix + ":".join((kind, *map(_part, parts)))

    def pattern(self, kind: str) -> str:
        """Returns what SCAN matches all keys of one kind with that have parts."""
        return f"{self._prefix}{kind}:*"


def _part(text: str) -> str:
    escaped = quote(text, safe=" !#$&'()+,./;<=>@^_`{|}~-", errors="surrogatepass")
    if len(escaped) <= _LONGEST_PART:
        return escaped
    return "%" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTiming:
    """Times that must be the same for all fronts of a queue."""

    renew: float = 3.0  # seconds between two times at which a front says what it runs
    claim_ms: int = 15_000  # without a renewal, after which others take an entry
    hold_ms: int = 5_000  # after a restart of Redis, in which fronts say what they still run before anything is read


@dataclass(frozen=True, slots=True)
class QueueNames:
    """Names the keys of one namespace. `front` is the id of this process among the fronts, unique for ever."""

    names: KeyNames
    front: str

    def stream(self, domain: str, key: str, band: Band) -> str:
        """Returns the stream of one queue and band. `domain`: whose keys they are, as `app`."""
        return self.names.name("queue", domain, key, band.name.lower())

    def streams(self, domain: str, key: str) -> tuple[str, str, str]:
        """Returns the streams of all bands, in their order."""
        return (
            self.stream(domain, key, Band.HIGH),
            self.stream(domain, key, Band.NORMAL),
            self.stream(domain, key, Band.LOW),
        )

    def mark(self, call: str) -> str:
        return self.marks + call

    def body(self, call: str) -> str:
        return self.bodies + call

    def front_stream(self, front: str) -> str:
        return self.front_streams + front

    @property
    def marks(self) -> str:
        """The beginning of the names of all marks."""
        return self.names.name("started", "")

    @property
    def bodies(self) -> str:
        return self.names.name("body", "")

    @property
    def front_streams(self) -> str:
        return self.names.name("front", "")

    @property
    def own_stream(self) -> str:
        return self.front_stream(self.front)

    @property
    def bell(self) -> str:
        """The stream that names the queue of each new entry."""
        return self.names.name("bell")

    @property
    def epoch(self) -> str:
        return self.names.name("epoch")

    @property
    def dead_letters(self) -> str:
        return self.names.name("dead")
