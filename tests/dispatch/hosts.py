"""A worker process as the dispatcher sees it, driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corosrv.dispatch.host import CallListener, HandedCall, LaneGroup
from corosrv.dispatch.permits import Permit, PermitPool
from corosrv.errors import CorosrvError, WorkerLost
from corosrv.jobs.infer import HandlerCard, InferOutputs
from corosrv.tensors import Parameter, Tensor


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
