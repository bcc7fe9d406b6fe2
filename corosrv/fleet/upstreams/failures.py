"""The ways in which a call to an upstream fails, and how an upstream is judged by them.

One failed probe does not make an upstream down (`ProbeRecord`). An answer of 500 in good form may be the request's
fault or the upstream's (`AnsweredError`, `Complaints`). `Breaker` decides whether an upstream gets calls, by how its
last ones went.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

import msgspec

from corosrv.base.errors import ErrorKind, NotHandedOver, WorkerLost
from corosrv.contracts.jobs.infer import AnswerHead
from corosrv.fleet.upstreams.answer_body import BadAnswer
from corosrv.workers.dispatch.estimates import RecentCount


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


N_FAILED_PROBES = 3  # probes in a row that an upstream falls after
N_GOOD_PROBES = 2  # probes in a row that one which fell rises after
PROBE_INTERVAL = 10.0  # seconds between two probes of one that is up
FAST_PROBE_INTERVAL = 2.0  # between two of one that is not, or whose last probe failed
SHORTEST_PROBE_INTERVAL = 0.5  # between two, whatever the upstream answers


class ProbeRecord:
    """Remembers how the last probes of an upstream went. The first one that goes well suffices for a new upstream."""

    def __init__(self) -> None:
        self.is_up = False
        self.reason = "not probed yet"  # why it is not up
        self._n_needed = 1  # probes in a row that would change is_up
        self._n_seen = 0
        self._unanswered: deque[float] = deque(
            maxlen=N_FAILED_PROBES
        )  # when the last ones began, none of which it answered

    @property
    def interval(self) -> float:
        """Seconds until the next probe."""
        return PROBE_INTERVAL if self.is_up and not self._n_seen else FAST_PROBE_INTERVAL

    @property
    def silent_since(self) -> float:
        """Returns since when it seems to be gone with its machine, by the last N_FAILED_PROBES probes; -inf if not.

        One that refuses connections, or answers whatever it is, is there: calls that it has may still be answered.
        """
        return self._unanswered[0] if len(self._unanswered) == N_FAILED_PROBES else -math.inf

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
        self._n_needed = N_FAILED_PROBES if self.is_up else N_GOOD_PROBES
        if self.is_up:
            self.reason = ""
        return True


MAX_ERROR = 64 << 10  # bytes of an error's body
N_COMPLAINTS = 5  # different requests that were answered so, one after the other
COMPLAINT_DURATION = 10.0  # seconds between the first and the last of them

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
        self._requests: set[int] = set()  # hashes of different ones, N_COMPLAINTS at most
        self._began_at = 0.0

    @property
    def n_requests(self) -> int:
        """Returns how many different requests are remembered."""
        return len(self._requests)

    def add(self, request: int, now: float) -> bool:
        """Records an answer of 500, by its request's hash, and returns whether it is to be taken as a fault.

        It is when N_COMPLAINTS requests have got it in COMPLAINT_DURATION seconds or more, and none anything else.
        """
        if not self._requests:
            self._began_at = now
        if self.n_requests < N_COMPLAINTS:
            self._requests.add(request)
        return self.n_requests >= N_COMPLAINTS and now - self._began_at >= COMPLAINT_DURATION

    def clear(self) -> None:
        """Records that the upstream has answered something else."""
        self._requests.clear()


MAX_FAULTS = 5  # in a row, that open the breaker
FAULT_WINDOW = 30.0  # seconds over which faults are compared with calls
N_COMPARED_CALLS = 20  # calls in the window, from which on their share of faults counts
MAX_FAULT_SHARE = 0.5  # of faults among them, that opens the breaker as well
FIRST_PAUSE = 5.0  # seconds; doubled with every opening
LONGEST_PAUSE = 60.0
N_TRIALS = 2  # trial calls that have to go well, one after the other


class BreakerState(Enum):
    CLOSED = "closed"  # calls pass
    OPEN = "open"  # no call passes, until its pause is over
    TRYING = "trying"  # one call at a time passes


class FaultShare:
    """Compares the faults of the last FAULT_WINDOW seconds with all calls that ended then. The time is passed in."""

    def __init__(self) -> None:
        self._calls = RecentCount(FAULT_WINDOW)
        self._faults = RecentCount(FAULT_WINDOW)

    def count(self, now: float) -> None:
        """Counts a call that has ended well."""
        self._calls.add(1, now)

    def note(self, is_fault: bool, now: float) -> bool:
        """Counts a call that has ended, and returns whether too many of the calls are faults."""
        self.count(now)
        self._faults.add(is_fault, now)
        n_calls = self._calls.total(now)
        return n_calls >= N_COMPARED_CALLS and self._faults.total(now) >= MAX_FAULT_SHARE * n_calls


class Breaker:
    """Stops calls to an upstream that fails them, and lets single ones through later to see whether it is well again.

    The time is passed in and never goes backwards; nothing waits. `jitter`: a random number from 0 to 1, so that
    several servers do not come back to the same upstream in the same moment.
    """

    def __init__(self) -> None:
        self._state = BreakerState.CLOSED
        self._n_faults = 0  # in a row
        self._share = FaultShare()  # while it is closed
        self._n_openings = 0  # since it was last closed
        self._n_well = 0  # trials in a row
        self._has_trial = False  # a trial call runs
        self._opens_until = -math.inf
        self._paused_until = -math.inf  # as the upstream itself has asked

    def state(self, now: float) -> BreakerState:
        """Returns its state; one whose pause is over is TRYING."""
        if self._state is BreakerState.OPEN and now >= self._opens_until:
            self._state = BreakerState.TRYING
            self._n_well = 0
            self._has_trial = False
        return self._state

    def lets_pass(self, now: float) -> bool:
        """Returns whether a call may go to the upstream now."""
        if self._state is BreakerState.CLOSED:
            return now >= self._paused_until
        state = self.state(now)
        if state is BreakerState.OPEN or now < self._paused_until:
            return False
        return not self._has_trial

    def next_change(self, now: float) -> float:
        """Returns when calls may pass that may not now, if nothing else happens; infinity if time changes nothing."""
        latest = self._paused_until
        if self._state is BreakerState.OPEN:
            latest = max(latest, self._opens_until)
        return latest if latest > now else math.inf

    def begin(self, now: float) -> bool:
        """Records that a call goes to the upstream, and returns whether it is a trial."""
        if self._state is BreakerState.CLOSED or self.state(now) is not BreakerState.TRYING:
            return False
        self._has_trial = True
        return True

    def succeed(self, is_trial: bool, now: float) -> None:
        """Records that the upstream has answered a call, were it with a refusal."""
        if self._state is BreakerState.CLOSED:
            self._n_faults = 0
            self._share.count(now)
        elif is_trial and self._state is BreakerState.TRYING:
            self._has_trial = False
            self._n_well += 1
            if self._n_well >= N_TRIALS:
                self._state = BreakerState.CLOSED
                self._n_faults = self._n_openings = 0

    def fail(self, is_trial: bool, now: float, jitter: float) -> None:
        """Records a fault of the upstream. Late ones of calls that began before it opened change nothing."""
        if self._state is BreakerState.CLOSED:
            self._n_faults += 1
            if self._share.note(True, now) or self._n_faults >= MAX_FAULTS:
                self._open(now, jitter)
        elif is_trial and self._state is BreakerState.TRYING:
            self._open(now, jitter)

    def forget_trial(self, is_trial: bool) -> None:
        """Records that a call ended without saying anything of the upstream: its client left."""
        if is_trial and self._state is BreakerState.TRYING:
            self._has_trial = False

    def pause(self, ends_at: float) -> None:
        """Stops calls until a time, as the upstream has asked; that is no fault."""
        self._paused_until = max(self._paused_until, ends_at)

    def pause_left(self, now: float) -> float:
        """Returns for how many seconds the upstream has asked to be left alone."""
        return max(self._paused_until - now, 0.0)

    def _open(self, now: float, jitter: float) -> None:
        pause = min(FIRST_PAUSE * 2.0**self._n_openings, LONGEST_PAUSE) * (0.8 + 0.2 * jitter)
        self._state = BreakerState.OPEN
        self._opens_until = now + pause
        self._n_openings = min(self._n_openings + 1, 16)
        self._share = FaultShare()
        self._has_trial = False
