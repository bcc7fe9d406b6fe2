"""What became of one request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum


class FailureKind(str, Enum):
    """How a request can fail; the value is what reports say."""

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
        """By what failures are counted together."""
        return f"{self.kind.value} {self.status}" if self.status else self.kind.value


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request from its intended start to its end; times are of the monotonic clock.

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
