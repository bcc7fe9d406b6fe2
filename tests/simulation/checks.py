"""What must hold of every call, and what may be left when a world has ended."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gevent import Greenlet

from corosrv.base.errors import WorkerLost

MAX_REMEMBERED = 100  # calls that have ended long ago
SLACK = 1.0  # seconds by which a deadline may be missed, and a cancel be late


class Sender(Protocol):
    """Stands for whoever sends an answer."""

    @property
    def was_killed(self) -> bool:
        """Tells whether the server has ended it, and so what it had sent last."""


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One call as its client and those who run it see it."""

    number: int
    began_at: float = 0.0  # of time.monotonic(), as all times here
    deadline: float = float("inf")
    slack: float = SLACK  # seconds by which its end may come late: its client may look seldom
    priority: int = 5
    max_starts: int = 2
    n_starts: int = 0
    places: list[str] = field(default_factory=list)  # that have run it, in their order
    pieces: list[tuple[str, int]] = field(default_factory=list)  # the places and positions of those that came
    n_ends: int = 0
    ended_at: float = float("inf")
    has_left: bool = False  # its client
    sender: Sender | None = None  # who has sent the whole answer


class Ledger:
    """Keeps a record of each call that has not ended, and of what ended lately; tells of whatever is wrong."""

    def __init__(self, clock: Callable[[], float], violate: Callable[[str], None]) -> None:
        self.outcomes: Counter[str] = Counter()
        self._clock = clock
        self._violate = violate
        self._records: dict[int, CallRecord] = {}

    def __getitem__(self, number: int) -> CallRecord:
        return self._records[number]

    @property
    def open(self) -> list[CallRecord]:
        return [record for record in self._records.values() if record.ended_at == float("inf")]

    def begin(self, record: CallRecord) -> CallRecord:
        record.began_at = self._clock()
        self._records[record.number] = record
        return record

    def start(self, number: int, place: str, slack: float = SLACK) -> None:
        """Records that somebody begins to run a call, at most `slack` seconds after its end."""
        record = self._records[number]
        self._check_sent(record, f"and the call starts again on {place}")
        record.n_starts += 1
        record.places.append(place)
        if record.n_starts > record.max_starts:
            self._violate(f"call {number} starts for the {record.n_starts}th time, on {place}")
        self.check_runs(number, place, slack)

    def check_runs(self, number: int, place: str, slack: float = SLACK) -> None:
        """Tells of a call that runs though its client has its end, since more than `slack` seconds."""
        record, now = self._records[number], self._clock()
        if now > record.ended_at + slack:
            self._violate(f"call {number} runs on {place}, {now - record.ended_at:.1f} s after its end")

    def add(self, number: int, place: str, position: int) -> None:
        """Records a piece of an answer, by its place in the text and by who has made it."""
        record = self._records[number]
        if record.n_ends:
            self._violate(f"call {number} gets a piece after its end")
        if record.pieces and record.pieces[-1][0] != place:
            self._violate(f"the text of call {number} is spliced of {record.pieces[-1][0]} and {place}")
        if position != len(record.pieces):
            self._violate(f"call {number} gets piece {position} where {len(record.pieces)} comes next")
        record.pieces.append((place, position))

    def answer(self, number: int, sender: Sender) -> None:
        """Records that the whole answer of a call was sent: it must reach the client, whatever comes then."""
        self._records[number].sender = sender

    def _check_sent(self, record: CallRecord, what: str) -> None:
        if record.sender is not None and not record.sender.was_killed and record.ended_at == float("inf"):
            self._violate(f"the answer of call {record.number} was sent, {what}")

    def end(self, number: int, error: BaseException | None) -> None:
        """Records the end that a client gets."""
        record = self._records[number]
        if isinstance(error, WorkerLost):
            self._check_sent(record, f"and its client gets: {error}")
        record.n_ends += 1
        if record.n_ends > 1:
            self._violate(f"call {number} ends a second time")
        self._close(record, "ok" if error is None else type(error).__name__)

    def leave(self, number: int) -> None:
        """Records that a client wants nothing more."""
        record = self._records[number]
        record.has_left = True
        self._close(record, "left")

    def refuse(self, number: int, error: BaseException) -> None:
        """Records a call that was refused at once."""
        if self._records[number].n_starts:
            self._violate(f"call {number} was refused and runs")
        self._close(self._records[number], type(error).__name__)

    def _close(self, record: CallRecord, outcome: str) -> None:
        record.ended_at = self._clock()
        self.outcomes[outcome] += 1

    def look(self) -> None:
        """Tells of deadlines that have passed, and forgets what ended long ago."""
        now = self._clock()
        for record in self._records.values():
            if (record.ended_at if record.ended_at < now else now) > record.deadline + record.slack:
                self._violate(f"call {record.number} goes on {now - record.deadline:.1f} s after its deadline")
        if len(self._records) > 2 * MAX_REMEMBERED:
            old = [number for number, record in self._records.items() if now > record.ended_at + 120]
            for number in old[:-MAX_REMEMBERED]:
                del self._records[number]


def running_greenlets() -> Counter[str]:
    """Counts the greenlets that have not ended, by the names of their functions."""
    alive = (object for object in gc.get_objects() if isinstance(object, Greenlet) and not object.dead)
    return Counter(_name_of(greenlet) for greenlet in alive if greenlet.started or greenlet.gr_frame is not None)


def _name_of(greenlet: Any) -> str:
    function = greenlet._run
    return getattr(function, "__qualname__", type(function).__name__)
