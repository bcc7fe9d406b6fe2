"""The terms of a job: who asks, how urgent it is, and until when its answer is of use; and headers that say so.

Headers (in gRPC, metadata) have the same rule in all protocols: whoever sends one means something by it, so one that is
empty or out of range is refused. No time at all, `0`, is out of range: a client whose time is over wants no call
without a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.reader import Chunk

FIRST_PRIORITY = 1
DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9
CLASSES = 16  # of priority in one tier, or more: a tier and a priority in one number are tier * CLASSES + priority

PRIORITY = "X-Priority"
TIMEOUT = "X-Request-Timeout-Ms"
MAX_TIMEOUT_MS = 1_000_000_000

_MAX_DIGITS = 12


class Bill(Protocol):
    """Counts what one job uses for the account of an API key."""

    def charge(self, prompt_tokens: Sequence[int]) -> None:
        """Takes a job's tokens from what the key has left, before the job is queued; called with those of each task's
        prompt. Raises LimitReached where that is too little."""

    def add_end(self, chunk: Chunk) -> None:
        """Counts a task by its terminal chunk."""

    def drop(self) -> None:
        """Gives the charge back: the job was never queued."""

    def close(self, generated_tokens: int, compute_ms: float = 0.0) -> None:
        """Settles the charge, however the job ended; `generated_tokens`: of all its tasks; `compute_ms`: of those whose
        end nobody has read. Twice is harmless."""


class Account(Protocol):
    """The limits and the usage of an API key."""

    @property
    def counts_answers(self) -> bool:
        """Tells whether it has limits that only whoever makes an answer can keep: of tokens, and of answers at once."""

    def may_use(self, names: Iterable[str]) -> bool:
        """Tells whether the key may use the model that has these names."""

    def open_bill(self, n_tasks: int, n: int, max_tokens: int | None) -> Bill:
        """Begins to count a job of `n` answers to each prompt, with at most `max_tokens` in each; None: not limited.

        Raises LimitReached. Whoever calls closes the bill.
        """


TRACE = "corosrv.trace"  # in the WSGI environment: the request's TracePart, where the access log or traces are on


class TracePart(Protocol):
    """A request, or a part of it, for the access log and for traces. Nothing here waits."""

    @property
    def trace_id(self) -> str:
        """The id that all parts of the request share; empty where only the access log is on."""

    def name_model(self, model: str) -> None:
        """Tells which model, handler or predictor the request is for."""

    def begin(self, name: str, attributes: Mapping[str, Any], *, is_client: bool = False) -> TracePart:
        """Begins a part of this, which whoever calls ends. `is_client`: another server or process does it."""

    def add_past(self, name: str, ago: float, seconds: float, attributes: Mapping[str, Any] | None = None) -> None:
        """Adds a part that is over: it began `ago` seconds before now, and took `seconds`."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Returns the headers by which whoever is called goes on with the trace."""

    @property
    def exemplar_labels(self) -> Mapping[str, str]:
        """The ids by which an exemplar names this part; empty where the trace is not sent."""

    def note_job(self, model: str, wait: float, first_token: float) -> None:
        """Makes this the exemplar of a job's times, in seconds from its submission: to a slot, and to a token."""

    def end(self, attributes: Mapping[str, Any] | None = None, error: str = "") -> None:
        """Ends it. `error`: a word for what went wrong."""


@contextmanager
def part_of(trace: TracePart | None, name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Shows what is done within as a part of the trace, if there is one."""
    part = None if trace is None else trace.begin(name, attributes)
    error = ""
    try:
        yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        if part is not None:
            part.end(error=error)


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a job waits and runs; the same for every kind of job."""

    caller: str = ""  # who asks; what is computed for one caller is not shared with another
    request_id: str = ""
    priority: int = DEFAULT_PRIORITY  # among those of the caller's: 1 runs first, 9 last
    tier: int = 0  # of the caller: all of a better one go first; 0 is the best, 9 the last
    weight: float = 1.0  # of the caller: its share of the machine beside others of its tier
    deadline: float | None = None  # of time.monotonic(); None: no limit
    waits: bool = True  # False: refused with NoCapacity where it would have to queue
    idempotency_key: str = ""  # asked twice by one caller, a call runs once and its answer is given again; empty: none
    session: str = ""  # calls of one session prefer the worker that served it last; empty: none
    waiting_keys: tuple[str, ...] = ()  # of the calls that wait for this one, the outermost first
    asker: int = 0  # the hand-over whose handler makes this call; 0: no handler of this server does
    owner: str = ""  # whose share of the machine it takes, who shares no prefix with others; empty: the caller
    n_hops: int = 0  # times that the request, or the one whose handler makes this call, went on to another replica
    visited: tuple[str, ...] = ()  # the ids of the replicas that have seen it before this one
    headers: tuple[tuple[str, str], ...] = ()  # of the client, in lower case, that go on with it to another replica
    account: Account | None = field(default=None, compare=False, repr=False)  # of the caller's key, if it has one
    bill: Bill | None = field(default=None, compare=False, repr=False)  # of the job, where it has an account
    trace: TracePart | None = field(default=None, compare=False, repr=False)  # what the job is a part of


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests that an inference gateway tells apart from others: those of one fairness id and of one objective."""

    name: str = ""  # of its share beside the caller's other flows; empty: the caller's own
    tier: int | None = None  # None: as the caller's key has it
    priority: int = 0  # 0: as the request says

    def place(self, terms: Terms) -> Terms:
        """Returns the terms of a request of this flow."""
        return replace(
            terms,
            owner=f"{terms.caller}\0{self.name}" if self.name else "",
            tier=terms.tier if self.tier is None else self.tier,
            priority=self.priority or terms.priority,
        )


def parse_priority(text: str | None) -> int:
    """Returns the priority in the value of X-Priority; 0 if it or the header's absence leaves that to the server.

    Raises Refused, which names the header.
    """
    return 0 if text is None else _parse_number(PRIORITY, text, 0, LAST_PRIORITY)


def parse_timeout(text: str | None) -> float | None:
    """Returns the seconds in the value of X-Request-Timeout-Ms, which has milliseconds; None without the header.

    Raises Refused, which names the header.
    """
    return None if text is None else _parse_number(TIMEOUT, text, 1, MAX_TIMEOUT_MS) / 1000


def _parse_number(header: str, text: str, least: int, most: int) -> int:
    digits = text.strip()
    if (
        digits.isascii()
        and digits.isdigit()
        and len(digits) <= _MAX_DIGITS
        and least <= (number := int(digits)) <= most
    ):
        return number
    raise Refused(f"{header}: must be an integer from {least} to {most}, not {digits[:40]!r}", header)
