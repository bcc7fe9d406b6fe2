"""The rows of the registry: a handler's key, the hosts that serve it, and the pools that may.

A handler whose worker processes die while it runs goes into quarantine, and gets calls again after a while, one first.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum

from corosrv.contracts.jobs.infer import BatchLimits, HandlerCard
from corosrv.workers.dispatch.estimates import RecentCount
from corosrv.workers.dispatch.host import HandlerHost, LaneGroup
from corosrv.workers.dispatch.ledger import Ledger

WINDOW = 60.0  # seconds over which crashes are compared with calls
MAX_CRASHES = 2  # within the window, that put a handler into quarantine
MIN_SHARE = 0.01  # of crashes among its calls; below, somebody else may have killed the processes of a busy handler
FIRST_PAUSE = 10.0  # seconds; doubled with every crash of a trial call
LONGEST_PAUSE = 320.0
N_TRIALS = 2  # trial calls that have to go well, one after the other


class QuarantineState(Enum):
    """States of a handler."""

    FREE = "free"  # calls pass
    QUARANTINED = "quarantined"  # no call passes, until the pause is over
    TRYING = "trying"  # one call at a time passes


class Quarantine:
    """Keeps calls from a handler that kills its processes. The time is passed in and never goes backwards.

    "Well" is every call whose process has lived on, also one that was refused or that raised.
    """

    def __init__(self) -> None:
        self._state = QuarantineState.FREE
        self._crashes: deque[float] = deque(maxlen=MAX_CRASHES)  # their times
        self._good_calls = RecentCount(WINDOW)
        self._n_pauses = 0  # in a row
        self._n_well = 0  # trials in a row
        self._has_trial = False  # a trial call waits or runs
        self._ends_at = -math.inf

    @property
    def is_closed(self) -> bool:
        """True while no call passes, as of the time that was passed in last."""
        return self._state is QuarantineState.QUARANTINED

    def state(self, now: float) -> QuarantineState:
        """Returns its state; a handler whose pause is over is TRYING."""
        if self._state is QuarantineState.QUARANTINED and now >= self._ends_at:
            self._state = QuarantineState.TRYING
            self._n_well = 0
            self._has_trial = False
        return self._state

    def admits(self, now: float) -> bool:
        """Returns whether a call may come in now."""
        if self._state is QuarantineState.FREE:
            return True
        state = self.state(now)
        return state is QuarantineState.FREE or (state is QuarantineState.TRYING and not self._has_trial)

    def pause_left(self, now: float) -> float:
        """Returns the seconds after which a refused call may be tried again; 1 while a trial call runs."""
        return max(self._ends_at - now, 1.0)

    def begin(self) -> bool:
        """Records that a call comes in which was admitted, and returns whether it is a trial."""
        if self._state is not QuarantineState.TRYING:
            return False
        self._has_trial = True
        return True

    def end_trial(self, is_well: bool) -> None:
        """Records the end of a trial call. Not well is one that says nothing: it never ran, or its client left."""
        if self._state is not QuarantineState.TRYING:
            return
        self._has_trial = False
        self._n_well += is_well
        if self._n_well >= N_TRIALS:
            self._state = QuarantineState.FREE
            self._crashes.clear()
            self._n_pauses = 0

    def count_well(self, n_calls: int, now: float) -> None:
        """Records calls that have ended and left their process alive."""
        self._good_calls.add(n_calls, now)

    def suspicion(self, now: float) -> float:
        """Returns how likely it is that this handler, of those that ran, has killed their process."""
        self._forget_crashes(now)
        return (len(self._crashes) + 1) / (self._good_calls.total(now) + 1)

    def crash(self, now: float) -> bool:
        """Records that it killed its process; returns whether a pause begins with that.

        Late crashes of calls that began before the pause change nothing.
        """
        self._forget_crashes(now)
        state = self.state(now)
        if state is QuarantineState.QUARANTINED:
            return False
        self._crashes.append(now)
        n_crashes = len(self._crashes)
        is_often = n_crashes == MAX_CRASHES and n_crashes >= MIN_SHARE * self._good_calls.total(now)
        if state is QuarantineState.FREE and not is_often:
            return False
        self._state = QuarantineState.QUARANTINED
        self._ends_at = now + min(FIRST_PAUSE * 2.0**self._n_pauses, LONGEST_PAUSE)
        self._n_pauses = min(self._n_pauses + 1, 16)
        return True

    def _forget_crashes(self, now: float) -> None:
        while self._crashes and self._crashes[0] <= now - WINDOW:
            self._crashes.popleft()


LINGER = 60.0  # seconds for which a handler is known after its last worker and pool have left

ONLY_HOST = "the only worker that may run this call, as it keeps what that goes on from, is not ready"
QUARANTINED = "its worker processes died while it ran, so it is in quarantine"


class HostGroup:
    """Joins slots of a registered host with the handlers that they serve. Belongs to the hub's thread."""

    __slots__ = ("entries", "group", "host", "is_registered", "looks_at", "permits", "running", "turn")

    def __init__(self, host: HandlerHost, group: LaneGroup) -> None:
        self.host = host
        self.group = group
        self.permits = group.permits
        self.entries: dict[
            str, tuple[HandlerEntry, int]
        ] = {}  # by key: the entry, and the handler's position in the host
        self.is_registered = True  # False once the host was removed or replaced
        self.looks_at = math.inf  # when it is looked at next, for a batch that gathers
        self.running: set[int] = set()  # numbers of the hand-overs that hold its permits
        self.turn = 0  # when a call was last given to it; the group with the lowest is next among equals

    @property
    def takes_calls(self) -> bool:
        return self.is_registered and not self.host.is_draining

    @property
    def n_permits(self) -> int:
        """The number of slots that can run calls, now or when what they run has ended; 0 while the host drains."""
        return self.permits.n_usable if self.is_registered and not self.host.is_draining else 0

    @property
    def has_free(self) -> bool:
        """True if a call can be handed over now."""
        return self.permits.available > 0 and self.is_registered and not self.host.is_draining

    @property
    def load(self) -> float:
        """The share of its slots that is in use."""
        permits = self.permits
        return permits.in_use / max(permits.n_usable, 1)


@dataclass(frozen=True, slots=True)
class PoolStanding:
    """Says what is known of a pool that serves a handler. `reason`: why it cannot start a worker."""

    can_start: bool
    reason: str = ""
    patience: float | None = None  # seconds that a call waits for its first worker; None: as the dispatcher's settings
    retry_after: float | None = None  # seconds after which calls may be tried again, if that is known


@dataclass(slots=True, eq=False)
class HandlerEntry:
    """Keeps what the registry knows of one key. Belongs to the hub's thread."""

    key: str
    card: HandlerCard
    groups: list[HostGroup] = field(default_factory=list)
    pools: dict[str, PoolStanding] = field(default_factory=dict)  # that may start a worker for it, by name
    left_at: float | None = None  # when the last host or pool left; None while there is one
    turn: int = 0  # when a call was last given to it; the entry with the lowest is next among equals
    quarantine: Quarantine = field(default_factory=Quarantine)
    ledger: Ledger = field(default_factory=Ledger)  # of its callers; one for all entries that share permits

    def at(self, host_id: str) -> HandlerEntry:
        """Returns the part of it that one host, and the pool of that name, offer; all of it for an empty id."""
        if not host_id:
            return self
        groups = [group for group in self.groups if group.host.id == host_id]
        pools = {name: replace(pool, reason=ONLY_HOST) for name, pool in self.pools.items() if name == host_id}
        return replace(self, groups=groups, pools=pools)

    @property
    def batch_limits(self) -> BatchLimits | None:
        """The limits by which its calls gather; None if they run one by one."""
        limits = self.card.batch
        return limits if limits is not None and limits.max_size > 1 else None

    @property
    def predicts(self) -> bool:
        """True if calls that can hardly end in time are refused, and not started."""
        return self.card.admission == "predict"

    @property
    def n_permits(self) -> int:
        return sum(group.n_permits for group in self.groups)

    @property
    def has_free(self) -> bool:
        return any(group.has_free for group in self.groups)

    @property
    def is_ready(self) -> bool:
        """True if some worker takes its calls, now or when it has ended others."""
        for group in self.groups:  # noqa: SIM110 - this is asked for with each call, and `any` takes thrice the time
            if group.n_permits > 0:
                return True
        return False

    @property
    def is_startable(self) -> bool:
        """True if some pool may start a worker for it, so that calls can wait."""
        return any(pool.can_start for pool in self.pools.values())

    @property
    def is_callable(self) -> bool:
        """True if a worker takes its calls, or may be started for them, and it is not in quarantine."""
        return (self.is_ready or self.is_startable) and not self.quarantine.is_closed

    @property
    def load(self) -> float:
        return min((group.load for group in self.groups if group.n_permits > 0), default=1.0)

    @property
    def reason(self) -> str:
        """Why it cannot be called, in words for clients."""
        if self.quarantine.is_closed:
            return QUARANTINED
        return next((pool.reason for pool in self.pools.values() if pool.reason), "no worker is ready")

    @property
    def retry_after(self) -> float | None:
        """Returns the seconds after which a refused call may be tried again; None if no pool knows."""
        seconds = (pool.retry_after for pool in self.pools.values() if pool.retry_after is not None)
        return min(seconds, default=None)

    def state(self) -> str:
        """Returns READY, LOADING or UNAVAILABLE."""
        if self.quarantine.is_closed:
            return "UNAVAILABLE"
        if self.is_ready:
            return "READY"
        return "LOADING" if self.is_startable else "UNAVAILABLE"


def differs(card: HandlerCard, other: HandlerCard) -> str:
    """Returns which declaration of two handlers of one key differs, or an empty text if calls may go to either."""
    for name in ("inputs", "outputs", "is_stream", "unary"):
        if getattr(card, name) != getattr(other, name):
            return name
    return ""
