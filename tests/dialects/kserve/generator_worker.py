"""An InferWorker of generators, each call in a greenlet of its own: the protocol is tested over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import gevent
import gevent.queue

from corosrv.base.errors import (
    CallCancelled,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    NotFound,
    NotOffered,
    ReadTimeout,
    Refused,
    Unavailable,
)
from corosrv.contracts.jobs.infer import (
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
from corosrv.formats.tensors import Tensor

Answers = Iterator[InferOutputs]
Handler = Callable[[InferRequest], Answers]


@dataclass
class Model:
    """One handler: what it says of itself, and what it does. `error`: raised by a submit; `state`: of the index."""

    card: HandlerCard
    handler: Handler
    error: CorosrvError | None = None
    state: str = "READY"


@dataclass
class GeneratorWorker:
    """Runs handlers by name and version, or by capability. Keeps the jobs it was given, and counts what runs."""

    models: Mapping[str, Model]  # by the card's key
    jobs: list[InferJob] = field(default_factory=list)
    n_running: int = 0
    n_cancelled: int = 0

    def standings(self) -> tuple[ModelStanding, ...]:
        return tuple(
            ModelStanding(model.card, model.state, "it starts" * (model.state != "READY")) for model in self._all
        )

    @property
    def _all(self) -> list[Model]:
        return list(self.models.values())

    def find(self, target: Target) -> HandlerCard:
        return self._find(target).card

    def _find(self, target: Target) -> Model:
        if isinstance(target, ModelTarget):
            for model in self._all:
                card = model.card
                if card.capability is None and (card.name, card.version) == (target.name, target.version):
                    return model
            raise NotFound(f"there is no model '{target.name}'", "model", "model_not_found")
        if not target.query:
            raise Refused("capability: the query is empty", "capability")
        for model in self._all:
            if model.card.capability is not None and target.query.items() <= model.card.capability.items():
                return model
        raise NotFound("no handler has this capability", "capability")

    def submit(self, job: InferJob) -> InferReader:
        model = self._find(job.target)
        self.jobs.append(job)
        if model.error is not None:
            raise model.error
        if model.state != "READY":
            raise Unavailable(f"the model '{model.card.name}' is not ready")
        if model.card.is_stream and not job.stream and model.card.unary == "refuse":
            raise NotOffered(f"the model '{model.card.name}' only streams")
        return GeneratorReader(self, model, job)


class GeneratorReader(InferReader):
    """Reads what one call gives. Cancelling kills its greenlet."""

    def __init__(self, worker: GeneratorWorker, model: Model, job: InferJob) -> None:
        self._worker = worker
        self._model = model
        self._job = job
        self._items: gevent.queue.SimpleQueue = gevent.queue.SimpleQueue()
        self._is_over = False
        worker.n_running += 1
        self._greenlet = gevent.spawn(self._run)
        self._greenlet.link(self._on_end)

    @property
    def card(self) -> HandlerCard:
        return self._model.card

    def _run(self) -> None:
        deadline = self._job.terms.deadline
        seconds = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        answers = self._model.handler(self._job.request)
        with gevent.Timeout(seconds, DeadlinePassed("the call's time is over")):
            for answer in answers if self._job.stream else [_unary(self.card, answers)]:
                self._items.put(_choose(answer, self._job.request.outputs))

    def _on_end(self, greenlet: gevent.Greenlet) -> None:
        self._worker.n_running -= 1
        error = greenlet.exception
        if isinstance(greenlet.value, gevent.GreenletExit):
            self._worker.n_cancelled += 1
            error = CallCancelled("the call was cancelled")
        elif error is not None and not isinstance(error, CorosrvError):
            error = HandlerFailed("the handler failed")
        self._items.put(InferEnd(error))

    @property
    def is_finished(self) -> bool:
        return self._is_over

    def take(self, timeout: float | None = None) -> list[InferItem]:
        if self._is_over:
            return []
        try:
            items = [self._items.get(timeout=timeout)]
        except gevent.queue.Empty:
            raise ReadTimeout("nothing to read") from None
        while not self._items.empty():
            items.append(self._items.get())
        self._is_over = isinstance(items[-1], InferEnd)
        return items

    def pump(self, sink: Sink[InferItem], timeout: float | None = None) -> None:
        while not self._is_over and sink(self.take(timeout)):
            pass

    def cancel(self) -> None:
        self._greenlet.kill(block=False)

    def close(self) -> None:
        self.cancel()
        self._is_over = True


def _unary(card: HandlerCard, answers: Answers) -> InferOutputs:
    """Makes one answer of all: the last one, or with `join` its text as well."""
    every = list(answers)
    if not every:
        raise HandlerFailed("the handler gave no answer")
    if card.unary != "join":
        return every[-1]
    text = b"".join(tensor.data[0] for answer in every for tensor in answer.outputs if tensor.name == "text_output")
    others = tuple(tensor for tensor in every[-1].outputs if tensor.name != "text_output")
    return InferOutputs((Tensor("text_output", "BYTES", [1], data=[text]), *others), every[-1].parameters)


def _choose(answer: InferOutputs, names: tuple[str, ...] | None) -> InferOutputs:
    if names is None:
        return answer
    by_name = {tensor.name: tensor for tensor in answer.outputs}
    for name in names:
        if name not in by_name:
            raise Refused(f"there is no output '{name}'", "outputs")
    return replace(answer, outputs=tuple(by_name[name] for name in names))
