"""Names what the shared queue keeps in Redis."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.fleet.cluster.bands import Band
from corosrv.fleet.cluster.keys import KeyNames


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
        """The stream in which each new entry of any queue is told, by the queue's name."""
        return self.names.name("bell")

    @property
    def epoch(self) -> str:
        return self.names.name("epoch")

    @property
    def dead_letters(self) -> str:
        return self.names.name("dead")
