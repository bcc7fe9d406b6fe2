"""Several InferWorkers as one: an application's handlers, and the language models that this server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from corosrv.errors import NotFound
from corosrv.jobs.infer import HandlerCard, InferJob, InferReader, InferWorker, ModelStanding, Target

T = TypeVar("T")


class InferWorkers(InferWorker):
    """Asks workers in turn; the first one that knows a target gets its calls."""

    def __init__(self, workers: Sequence[InferWorker]) -> None:
        self._workers = tuple(workers)

    def standings(self) -> tuple[ModelStanding, ...]:
        return tuple(chain.from_iterable(worker.standings() for worker in self._workers))

    def find(self, target: Target) -> HandlerCard:
        return self._ask(lambda worker: worker.find(target))

    def submit(self, job: InferJob) -> InferReader:
        return self._ask(lambda worker: worker.submit(job))

    def _ask(self, question: Callable[[InferWorker], T]) -> T:
        """Returns the answer of the first worker that does not raise NotFound. Raises the NotFound of the first one."""
        first_error: NotFound | None = None
        for worker in self._workers:
            try:
                return question(worker)
            except NotFound as error:
                first_error = first_error or error
        raise first_error or NotFound("no model is served here", "model", "model_not_found")
