"""The outcome of one request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum


class FailureKind(str, Enum):
    """The ways in which a request can fail; reports show the values."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    STATUS = "HTTP"
    CUT = "no finish reason"
    SHORT = "too few tokens"
    MALFORMED = "malformed answer"
    ERROR = "error event"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    detail: str
    status: int = 0

    @property
    def label(self) -> str:
        """The name under which equal failures are counted."""
        return f"{self.kind.value} {self.status}" if self.status else self.kind.value


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request from its due time to its end; times are of the monotonic clock.

    `arrivals` has the time of every read that brought text: events that come together are one arrival, because that is
    what a reader sees, however a server packs its tokens. `tokens` is what the usage says, or else the events.
    """

    began: float
    ended: float
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    events: int = 0
    tokens: int = 0
    prompt_tokens: int | None = None
    is_counted_by_usage: bool = False
    finish: str = ""
    failure: Failure | None = None
    is_arriving: bool = False  # one of the long prompts that come while other streams run

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] - self.began if self.arrivals else None

    @property
    def total(self) -> float:
        return self.ended - self.began
