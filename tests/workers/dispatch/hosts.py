"""A worker process as the dispatcher sees it, and a clock, both driven by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corosrv.base.errors import CorosrvError, WorkerLost
from corosrv.contracts.jobs.infer import (
    HandlerCard,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferRequest,
    ModelTarget,
)
from corosrv.contracts.jobs.terms import Terms
from corosrv.formats.tensors import Parameter, Tensor
from corosrv.workers.dispatch.answers import HandlerReader
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedCall, LaneGroup, Permit, PermitPool
from corosrv.workers.dispatch.policy import DispatchSettings
from corosrv.workers.dispatch.stats import KeyStats


def card(name: str = "add", version: str = "", **options: object) -> HandlerCard:
    return HandlerCard(name, version, **options)


def capability_card(name: str = "embed", priority: int = 5, **attributes: str | int | float | bool) -> HandlerCard:
    return HandlerCard(name, capability=attributes, priority=priority)


def text(name: str, *elements: bytes) -> Tensor:
    return Tensor(name, "BYTES", [len(elements)], list(elements))


def outputs(*tensors: Tensor, **parameters: Parameter) -> InferOutputs:
    return InferOutputs(tensors, parameters)


@dataclass(eq=False)
class FakeCall:
    """A call that was handed to a FakeHost. Its items end by `end`, or all of them by `finish` and `fail`."""

    host: FakeHost
    permit: Permit
    call: HandedCall
    listener: CallListener
    running: set[int] = field(default_factory=set)
    cancels: list[tuple[int, bool]] = field(default_factory=list)

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        self.cancels.append((item, is_deadline))

    def send(self, answer: InferOutputs, item: int = 0, n_bytes: int = 0) -> None:
        self.listener.on_outputs(item, answer, n_bytes)

    def end(self, item: int, error: CorosrvError | None = None) -> None:
        self.running.remove(item)
        if not self.running:
            self.host.calls.remove(self)
            if self.permit.is_held:
                self.permit.release()
        self.listener.on_end(item, error)
        if not self.running:
            self.host.tell()

    def finish(self, answer: InferOutputs | None = None) -> None:
        """Answers every item alike and ends it."""
        for item in sorted(self.running):
            self.send(answer or outputs(text("out", b"%d" % item)), item)
            self.end(item)

    def fail(self, error: CorosrvError) -> None:
        for item in sorted(self.running):
            self.end(item, error)


class FakeHost:
    """Runs nothing by itself: `calls` are those that were handed over and have not ended, the oldest first."""

    def __init__(self, id: str, handlers: Sequence[HandlerCard], incarnation: int = 1, n_slots: int = 1) -> None:
        self.id = id
        self.incarnation = incarnation
        self.handlers = handlers
        self.permits = PermitPool(range(n_slots))
        self.groups: Sequence[LaneGroup] = [LaneGroup(tuple(range(len(handlers))), self.permits)]
        self.is_draining = False
        self.calls: list[FakeCall] = []
        self.n_started = 0
        self._listeners: list[Callable[[], None]] = []

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> FakeCall:
        assert permit.is_held
        running = FakeCall(self, permit, call, listener, set(range(len(call.items))))
        self.calls.append(running)
        self.n_started += 1
        return running

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def tell(self) -> None:
        for listener in self._listeners:
            listener()

    def drain(self) -> None:
        self.is_draining = True
        self.tell()

    def die(self) -> None:
        """Ends all calls as the end of the process does."""
        self.is_draining = True
        for slot in range(self.permits.total):
            self.permits.poison(slot, "the worker process has ended")
        for call in list(self.calls):
            call.fail(WorkerLost("the worker was lost"))
        self.tell()


class FakeClock:
    """A clock and the alarm of a dispatcher, both moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rings_at = math.inf
        self._on_ring: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def make_alarm(self, on_ring: Callable[[], None]) -> FakeClock:
        self._on_ring = on_ring
        return self

    def ring_by(self, at: float) -> None:
        self.rings_at = min(self.rings_at, at)

    def close(self) -> None:
        self.rings_at = math.inf

    def pass_time(self, seconds: float) -> None:
        """Moves on, and rings whenever the alarm is due on the way."""
        end = self.now + seconds
        while self.rings_at <= end:
            self.now, self.rings_at = max(self.now, self.rings_at), math.inf
            self._on_ring()
        self.now = end


@dataclass
class Front:
    """A dispatcher on a clock that is moved by hand."""

    clock: FakeClock
    dispatcher: Dispatcher

    @classmethod
    def make(cls, jitter: Callable[[], float] = lambda: 1.0, **settings: object) -> Front:
        clock = FakeClock()
        return cls(clock, Dispatcher(DispatchSettings(**settings), clock, clock.make_alarm, jitter))

    def add(self, id: str, *handlers: HandlerCard, incarnation: int = 1, n_slots: int = 1) -> FakeHost:
        host = FakeHost(id, handlers or [card()], incarnation, n_slots)
        assert self.dispatcher.add_host(host)
        return host

    def job(
        self, model: str = "add", *inputs: Tensor, seconds: float | None = None, version: str = "",
        stream: bool = False, names: Sequence[str] | None = None, only_host: str = "", **terms: object,
    ) -> InferJob:  # fmt: skip
        deadline = None if seconds is None else self.clock.now + seconds
        request = InferRequest(inputs, outputs=None if names is None else tuple(names))
        return InferJob(
            ModelTarget(model, version), request, stream, Terms(deadline=deadline, **terms), only_host=only_host
        )

    def call(self, model: str = "add", *inputs: Tensor, **options: object) -> HandlerReader:
        return self.dispatcher.submit(self.job(model, *inputs, **options))

    def key(self, key: str = "model:add:") -> KeyStats:
        return next(stats for stats in self.dispatcher.stats().keys if stats.key == key)


def ended(reader: HandlerReader) -> bool:
    """Returns whether the reader has its end, and takes nothing."""
    return reader._has_ended


def error_of(reader: HandlerReader) -> CorosrvError | None:
    """Takes all items of a reader that has ended, and returns its error."""
    items = read(reader)
    assert isinstance(items[-1], InferEnd)
    return items[-1].error


def read(reader: HandlerReader) -> list[InferItem]:
    """Takes what there is, and at least one item."""
    return reader.take(timeout=0)


def texts(items: Sequence[InferItem]) -> list[bytes]:
    """Returns the elements of all outputs."""
    return [
        element
        for item in items
        if isinstance(item, InferOutputs)
        for tensor in item.outputs
        for element in tensor.data
    ]
