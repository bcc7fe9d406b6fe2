"""Defines the contract of one app worker process: what its manager starts, watches, drains and ends."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from corosrv.contracts.jobs.setup import Setup, WorkerState
from corosrv.workers.dispatch.host import HandlerHost
from corosrv.workers.wire.calls import PoolCard

LEASE_EXPIRED = "no heartbeat came"  # how the reason of a worker begins whose lease has expired


@dataclass(frozen=True, kw_only=True)
class AppWorkerConfig:
    """Holds the settings of one app worker process; times are in seconds."""

    app_ref: str  # MODULE:ATTRIBUTE
    app_dir: str = ""
    is_factory: bool = False  # the attribute is a function that makes the application
    start_timeout_s: float = 120.0  # for the import and the start of the pool with its on_start together
    hang_grace_s: float = 10.0  # that a handler may go on after its cancel or its deadline
    lease_s: float = 10.0  # without a heartbeat, after which the worker is lost
    stop_grace_s: float = 10.0  # for on_stop
    env: Mapping[str, str] | None = None  # of the process, all of it; None: as the server's
    cwd: str | None = None
    command: tuple[str, ...] = (sys.executable, "-m", "corosrv.workers.worker.app")


class AppWorker(HandlerHost, Protocol):
    """Is one life of an app worker process. Belongs to the hub's thread; only `stop` waits.

    Its states: STARTING until the pool's handlers have registered, READY, DRAINING once it takes no new calls, and at
    last SETUP_FAILED, DEFUNCT (lost, hung or crashed) or STOPPED (as somebody wanted).
    """

    @property
    def state(self) -> WorkerState: ...

    @property
    def reason(self) -> str:
        """Says why it is SETUP_FAILED, DEFUNCT, DRAINING or STOPPED."""

    @property
    def setup(self) -> Setup:
        """The course of the start, with what was printed."""

    @property
    def pool(self) -> str | None:
        """The pool that it works for; None until one was chosen."""

    @property
    def pools(self) -> Sequence[PoolCard]:
        """The pools of the application; empty until it was imported."""

    @property
    def pid(self) -> int | None:
        """The process's id; None before it was started."""

    @property
    def rss(self) -> int:
        """The memory of the process in bytes, as its last heartbeat says."""

    @property
    def in_flight(self) -> int:
        """The number of slots that run a call or a batch."""

    @property
    def keys_at_loss(self) -> Sequence[str]:
        """The keys of the handlers that ran when it became DEFUNCT; of slots that were poisoned, theirs alone."""

    @property
    def last_heartbeat(self) -> float | None:
        """The time of the last heartbeat on time.monotonic()."""

    @property
    def served(self) -> int:
        """The number of calls that ended well."""

    @property
    def failed(self) -> int:
        """The number of calls that ended in an error, whosever."""

    def start(self) -> None:
        """Starts the process, which imports the application and, if a pool is chosen, starts its handlers."""

    def choose(self, pool: str) -> None:
        """Chooses the pool of a worker that was made without one. Raises Misuse if it has one."""

    def drain(self, reason: str = "") -> None:
        """Takes no new calls from now on; ends the process with its on_stop when nothing runs. Twice is harmless.

        A worker that is not READY yet is ended at once.
        """

    def stop(self, timeout: float) -> None:
        """Drains, and waits for the end of the process; `timeout` is the time that running calls have.

        Then on_stop has stop_grace_s, and at last the process is killed.
        """

    def kill(self) -> None:
        """Ends the process and all of its group now. Does not wait for it."""
