"""The terms of a job: who asks, how urgent it is, and until when its answer is of use."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PRIORITY = 1
DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a job waits and runs; the same for every kind of job."""

    caller: str = ""  # who asks; what is computed for one caller is not shared with another
    request_id: str = ""
    priority: int = DEFAULT_PRIORITY  # 1 runs first, 9 last
    deadline: float | None = None  # of time.monotonic(); None: no limit
    waits: bool = True  # False: refused with NoCapacity where it would have to queue
    idempotency_key: str = ""  # asked twice by one caller, a call runs once and its answer is given again; empty: none
    session: str = ""  # calls of one session prefer the worker that served it last; empty: none
    waiting_keys: tuple[str, ...] = ()  # of the calls that wait for this one, the outermost first
    asker: int = 0  # the hand-over whose handler makes this call; 0: no handler of this server does
