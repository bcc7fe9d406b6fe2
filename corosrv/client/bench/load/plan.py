"""The plan of a benchmark: its mix, its points, its rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MIN_REQUESTS = 8  # of a round, unless --requests is given


class Mix(str, Enum):
    SHORT = "short"
    LONG = "long"
    SHARED = "shared"
    ARRIVALS = "arrivals"


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a sweep: so many clients, each sending its next request when the last is answered (closed loop), or
    requests at random moments, `rate` a second, whether or not others are answered (open loop).

    The mix `arrivals` has both: clients that keep streams running, and long prompts that arrive at the rate.
    """

    clients: int = 0
    rate: float = 0.0

    @property
    def label(self) -> str:
        clients = f"{self.clients} client{'s' if self.clients != 1 else ''}" if self.clients else ""
        rate = f"{self.rate:g} requests/s" if self.rate else ""
        return ", ".join(filter(None, (clients, rate)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """A whole benchmark, for one server or for two in turn."""

    mix: Mix = Mix.SHORT
    points: tuple[Point, ...] = (Point(clients=1),)
    rounds: int = 5
    warmup: int = 1  # rounds before those that count
    requests: int | None = None  # of one round; None: one for each client, at least MIN_REQUESTS
    tokens: int = 64
    temperature: float = 0.8
    seed: int = 1
    is_chat: bool = True
    is_forced: bool = True  # asks for exactly `tokens` tokens, by ignore_eos
    timeout: float = 600.0
    processes: int = 1
    extra: dict[str, Any] = field(default_factory=dict)  # more members of the bodies

    def n_requests(self, point: Point) -> int:
        """Returns the number of requests of one round; in the mix `arrivals`, that of the long prompts."""
        return self.requests or max(point.clients if self.mix is not Mix.ARRIVALS else 0, MIN_REQUESTS)
