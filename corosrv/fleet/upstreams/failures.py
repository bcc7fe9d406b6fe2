"""The ways in which a call to an upstream fails, and the records by which an upstream is judged.

One failed probe does not make an upstream down (`ProbeRecord`). An answer of 500 in good form may be the request's
fault or the upstream's (`AnsweredError`, `Complaints`).
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from corosrv.base.errors import ErrorKind, NotHandedOver, WorkerLost
from corosrv.contracts.jobs.infer import AnswerHead
from corosrv.fleet.upstreams.answer_body import BadAnswer


class UpstreamBusy(NotHandedOver):
    """An upstream takes no call for some seconds, and says so itself."""

    status = 429
    kind = ErrorKind.RATE_LIMITED
    code = "upstreams_busy"

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.retry_after = math.ceil(seconds)


class UpstreamDown(NotHandedOver):
    """An upstream could not be given a call, which is its fault."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        """`seconds`: how long the upstream asked for no calls."""
        super().__init__(message)
        self.seconds = seconds
        self.retry_after = max(math.ceil(seconds), 1)


class UpstreamLost(WorkerLost):
    """An upstream broke off a call that it had."""


class UpstreamSilent(UpstreamLost):
    """An upstream has not said in time what it was asked for; it may be slow, or gone with its whole machine."""


class UpstreamRemoved(UpstreamLost):
    """An upstream was removed while it ran a call, which is no fault of it."""


def words_of(error: BaseException) -> str:
    """Says what went wrong with a connection, by the system's words where it was the system."""
    if isinstance(error, BadAnswer):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


N_FAILURES = 3  # probes in a row that an upstream falls after
N_SUCCESSES = 2  # probes in a row that one which fell rises after
INTERVAL = 10.0  # seconds between two probes of one that is up
FAST_INTERVAL = 2.0  # between two of one that is not, or whose last probe failed
SHORTEST_INTERVAL = 0.5  # between two, whatever the upstream answers


class ProbeRecord:
    """Remembers how the last probes of an upstream went. The first one that goes well suffices for a new upstream."""

    def __init__(self) -> None:
        self.is_up = False
        self.reason = "not probed yet"  # why it is not up
        self._n_needed = 1  # probes in a row that would change is_up
        self._n_seen = 0
        self._unanswered: deque[float] = deque(maxlen=N_FAILURES)  # when the last ones began, none of which it answered

    @property
    def interval(self) -> float:
        """Seconds until the next probe."""
        return INTERVAL if self.is_up and not self._n_seen else FAST_INTERVAL

    @property
    def silent_since(self) -> float:
        """Returns since when it seems to be gone with its machine, by the last N_FAILURES probes; -inf if it does not.

        One that refuses connections, or answers whatever it is, is there: calls that it has may still be answered.
        """
        return self._unanswered[0] if len(self._unanswered) == N_FAILURES else -math.inf

    def note(self, failure: str, unanswered_since: float | None = None) -> bool:
        """Records a probe, and why it failed; an empty text is a success. Returns whether is_up has changed.

        `unanswered_since`: when the probe began, if nobody has answered it in any way.
        """
        if unanswered_since is None:
            self._unanswered.clear()
        else:
            self._unanswered.append(unanswered_since)
        if failure or self.is_up:
            self.reason = failure
        if bool(failure) is not self.is_up:  # as before
            self._n_seen = 0
            return False
        self._n_seen += 1
        if self._n_seen < self._n_needed:
            return False
        self.is_up = not self.is_up
        self._n_seen = 0
        self._n_needed = N_FAILURES if self.is_up else N_SUCCESSES
        if self.is_up:
            self.reason = ""
        return True


MAX_ERROR = 64 << 10  # bytes of an error's body
N_DIFFERENT = 5  # requests
DURATION = 10.0  # seconds

_TYPE = "application/json"


class AnsweredError:
    """Collects the body of an answer of 500, and tells whether it is an error as servers of models write theirs."""

    __slots__ = ("_body", "is_pending")

    def __init__(self, head: AnswerHead) -> None:
        kind = next((value for name, value in head.headers if name.lower() == "content-type"), "")
        self.is_pending = head.status == 500 and kind.partition(";")[0].strip().lower() == _TYPE
        self._body = b""

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the body; one over MAX_ERROR is no error's."""
        if self.is_pending:
            self._body += piece
            self.is_pending = len(self._body) <= MAX_ERROR

    @property
    def is_well_formed(self) -> bool:
        """Tells whether the whole body is an error: an object with `error`, or one that calls itself an error."""
        if not self.is_pending:
            return False
        try:
            value = msgspec.json.decode(self._body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return isinstance(value, dict) and bool(value.get("error") or value.get("object") == "error")


class Complaints:
    """Remembers the answers of 500 since an upstream has last answered anything else.

    llama-server answers 500 to some requests that are wrong themselves; so do others. One client that sends such
    requests must not take the upstream from everybody, but one that fails every request is not well either.
    """

    def __init__(self) -> None:
        self._requests: set[int] = set()  # hashes of different ones, N_DIFFERENT at most
        self._began_at = 0.0

    @property
    def n_requests(self) -> int:
        """Returns how many different requests are remembered."""
        return len(self._requests)

    def add(self, request: int, now: float) -> bool:
        """Records an answer of 500, by its request's hash, and returns whether it is to be taken as a fault.

        It is when N_DIFFERENT requests have got it in DURATION seconds or more, and none anything else.
        """
        if not self._requests:
            self._began_at = now
        if self.n_requests < N_DIFFERENT:
            self._requests.add(request)
        return self.n_requests >= N_DIFFERENT and now - self._began_at >= DURATION

    def clear(self) -> None:
        """Records that the upstream has answered something else."""
        self._requests.clear()
