"""Models that are functions of a test, behind the contract of everything that runs inference calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import gevent
from gevent.event import Event
from gevent.queue import Empty, Queue

from corosrv.base.errors import (
    CallCancelled,
    Conflict,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    NotFound,
    ReadTimeout,
    Unavailable,
)
from corosrv.contracts.jobs.infer import (
    CapabilityTarget,
    HandlerCard,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferReader,
    InferRequest,
    ModelStanding,
    ModelTarget,
    Target,
)
from corosrv.contracts.jobs.reader import Sink
from corosrv.formats.tensors import Parameter, Tensor

WINDOW = 4  # answers that a call may be ahead of its reader


class FunctionCall(InferReader):
    """One call: what its function works with, and what its reader reads."""

    def __init__(self, job: InferJob, card: HandlerCard) -> None:
        self.job = job
        self._card = card
        self._items: Queue[InferItem] = Queue()
        self._has_room = Event()
        self.cancelled = Event()
        self.n_sent = 0
        self.n_cancels = 0
        self._is_finished = False

    # The function's side.

    @property
    def request(self) -> InferRequest:
        return self.job.request

    def send(self, *outputs: Tensor, is_final: bool = False, **parameters: Parameter) -> None:
        """Gives one answer. Waits while the reader is behind; raises CallCancelled once the call is cancelled."""
        while self._items.qsize() >= WINDOW and not self.cancelled.is_set():
            self._has_room.clear()
            self._has_room.wait()
        if self.cancelled.is_set():
            raise CallCancelled("cancelled")
        self.n_sent += 1
        self._items.put(InferOutputs(outputs, parameters, is_final))

    def end(self, error: CorosrvError | None) -> None:
        self._items.put(InferEnd(error))

    # The reader's side.

    @property
    def card(self) -> HandlerCard:
        return self._card

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    def take(self, timeout: float | None = None) -> list[InferItem]:
        if self._is_finished:
            return []
        try:
            items = [self._items.get(timeout=timeout)]
        except Empty:
            raise ReadTimeout("nothing came") from None
        while self._items.qsize():
            items.append(self._items.get())
        self._has_room.set()
        self._is_finished = isinstance(items[-1], InferEnd)
        return items

    def pump(self, sink: Sink[InferItem], timeout: float | None = None) -> None:
        while (items := self.take(timeout)) and sink(items):
            pass

    def cancel(self) -> None:
        self.n_cancels += 1
        self.cancelled.set()
        self._has_room.set()

    def close(self) -> None:
        if not self._is_finished:
            self.cancel()
        self._is_finished = True


Function = Callable[[FunctionCall], None]


@dataclass
class FunctionWorker:
    """An InferWorker whose models are functions; each call is a greenlet, ended by its cancel or at its deadline.

    A function sends its answers, and returns or raises.
    """

    models: dict[str, tuple[HandlerCard, Function]] = field(default_factory=dict)  # by HandlerCard.key
    calls: list[FunctionCall] = field(default_factory=list)
    unready: set[str] = field(default_factory=set)  # names of models
    is_ready: bool = True
    n_running: int = 0

    def add(self, function: Function, name: str, version: str = "", **details: object) -> HandlerCard:
        card = HandlerCard(name, version, **details)  # type: ignore[arg-type]
        self.models[card.key] = card, function
        return card

    def check_ready(self) -> None:
        if not self.is_ready:
            raise Unavailable("a pool has no worker yet")

    def standings(self) -> tuple[ModelStanding, ...]:
        return tuple(ModelStanding(card, self._state(card)) for card, _ in self.models.values())

    def find(self, target: Target) -> HandlerCard:
        cards = [card for card, _ in self.models.values() if _matches(card, target)]
        if not cards:
            raise NotFound(f"nothing matches {target}", "model", "model_not_found")
        if len(cards) > 1 and isinstance(target, CapabilityTarget):
            raise Conflict(f"both {cards[0].name} and {cards[1].name} match")
        return max(cards, key=lambda card: (not card.version, card.is_default, card.version))

    def submit(self, job: InferJob) -> FunctionCall:
        card = self.find(job.target)
        call = FunctionCall(job, card)
        self.calls.append(call)
        gevent.spawn(self._run, call, self.models[card.key][1])
        return call

    def _run(self, call: FunctionCall, function: Function) -> None:
        self.n_running += 1
        deadline = call.job.terms.deadline
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            with gevent.Timeout(seconds, DeadlinePassed("the call's time is over")):
                running = gevent.spawn(_outcome, function, call)
                with contextlib.ExitStack() as at_end:
                    at_end.callback(running.kill)
                    gevent.wait([running, call.cancelled], count=1)
                    if not running.ready():
                        raise CallCancelled("cancelled")
                    call.end(running.value)
        except CorosrvError as error:
            call.end(error)
        finally:
            self.n_running -= 1

    def _state(self, card: HandlerCard) -> str:
        return "UNAVAILABLE" if card.name in self.unready else "READY"


def _outcome(function: Function, call: FunctionCall) -> CorosrvError | None:
    try:
        function(call)
    except CorosrvError as error:
        return error
    except Exception as error:
        return HandlerFailed(f"the handler failed ({type(error).__name__})")
    return None


def _matches(card: HandlerCard, target: Target) -> bool:
    if isinstance(target, ModelTarget):
        return card.capability is None and card.name == target.name and target.version in ("", card.version)
    capability = card.capability
    return capability is not None and all(capability.get(key) == value for key, value in target.query.items())
