"""Defines the contract between the dispatcher and the worker processes that run handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import HandlerCard, InferOutputs, InferRequest
from corosrv.contracts.jobs.job import DEFAULT_PRIORITY
from corosrv.workers.dispatch.permits import Permit, PermitPool


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """Names slots of one worker that serve the same handlers: a permit of the pool runs one call or batch of any."""

    handlers: tuple[int, ...]  # their positions in HandlerHost.handlers
    permits: PermitPool
    weight: float = 1.0  # its share of the calls beside other workers, for a policy that heeds weights


@dataclass(frozen=True, slots=True)
class HandedItem:
    """Holds one request of a call that is handed over."""

    request: InferRequest
    deadline: float | None = None  # of time.monotonic()
    request_id: str = ""
    caller: str = ""  # whose call it is; the calls that its handler makes are his, too
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class HandedCall:
    """Holds what a worker runs for one of its handlers: one request, or those of a batch."""

    handler: int  # its position in HandlerHost.handlers
    items: Sequence[HandedItem]
    attempt: int = 1
    stream: bool = False
    waiting_keys: tuple[str, ...] = field(default=())  # of the calls that wait for this one, its own among them
    number: int = 0  # of the hand-over; the calls that its handler makes name it as their asker


class CallListener(Protocol):
    """Receives what a handed-over call sends. Only `wait_for_room` may wait.

    Each item gets any number of outputs and then exactly one `on_end`, also if the worker dies. When the last item's
    `on_end` is called, the call's permit has ended.
    """

    def on_outputs(self, item: int, outputs: InferOutputs, n_bytes: int) -> None: ...

    def on_end(self, item: int, error: CorosrvError | None) -> None:
        """Takes the end of one item; `error` is None if it ended well.

        WorkerLost: its worker was lost, and it may have run. NotHandedOver: nothing of it has reached the worker.
        """

    def wait_for_room(self) -> None:
        """Waits until more outputs may come; until then the worker's handler waits."""


class RunningCall(Protocol):
    """Stands for a call that was handed over."""

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        """Asks an item to end, or all of them with -1. Its `on_end` still comes. Never waits; twice is harmless."""


class HandlerHost(Protocol):
    """Stands for one worker process that has registered. Belongs to the hub's thread; nothing waits."""

    @property
    def id(self) -> str:
        """The pool and the place in it, as `default/0`; the same for the process that replaces this one."""

    @property
    def incarnation(self) -> int:
        """Grows with every process of a place."""

    @property
    def handlers(self) -> Sequence[HandlerCard]: ...

    @property
    def groups(self) -> Sequence[LaneGroup]: ...

    @property
    def is_draining(self) -> bool:
        """True once no new calls may be handed over."""

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> RunningCall:
        """Hands a call over on the permit's slot, and owns the permit from then on. Never raises.

        A permit that is released, poisoned or added is told to `on_change` listeners.
        """

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after a change of the permits or of `is_draining`; it must not wait."""
