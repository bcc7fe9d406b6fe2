"""Records the steps of transfers, for tests and for the log of a fault."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

MAX_EVENTS = 4096  # the oldest go


class TraceKind(Enum):
    """Kinds of steps."""

    OPEN = "open"
    ALLOCATE = "allocate"
    GRANT = "grant"
    COPY = "copy"
    FREE = "free"
    CLOSE = "close"
    CANCEL = "cancel"
    QUARANTINE = "quarantine"
    END = "end"  # as the client sees it
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Records one step of a transfer, or the wish that the encoder of an epoch be killed."""

    kind: TraceKind
    rid: int = 0
    tid: int = 0
    gen: int = 0
    blocks: tuple[int, ...] = ()
    epoch: int = 0


class Trace:
    """Keeps the last steps; `n_events` counts all."""

    def __init__(self) -> None:
        self.events: deque[TraceEvent] = deque(maxlen=MAX_EVENTS)
        self.n_events = 0

    def add(self, event: TraceEvent) -> None:
        self.events.append(event)
        self.n_events += 1

    def events_after(self, n_events: int) -> list[TraceEvent]:
        """Returns the steps after the first `n_events`, as far as they are kept."""
        n_new = min(self.n_events - n_events, len(self.events))
        return list(self.events)[len(self.events) - n_new :]
