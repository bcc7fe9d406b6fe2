"""Joins several workers into one: handlers of an application and language models in the same server."""

from __future__ import annotations

from collections.abc import Sequence

from corosrv.base.errors import NotFound, Starting
from corosrv.contracts.jobs.infer import HandlerCard, InferJob, InferReader, InferWorker, ModelStanding, Target


class SeveralWorkers(InferWorker):
    """Gives each call to the first worker that knows its target."""

    def __init__(self, workers: Sequence[InferWorker]) -> None:
        self._workers = tuple(workers)

    def standings(self) -> tuple[ModelStanding, ...]:
        """Returns what all workers know; of two with the same key, that of the worker that calls go to."""
        by_key: dict[str, ModelStanding] = {}
        for worker in self._workers:
            for standing in worker.standings():
                by_key.setdefault(standing.card.key, standing)
        return tuple(by_key.values())

    def find(self, target: Target) -> HandlerCard:
        return self._worker_of(target)[1]

    def submit(self, job: InferJob) -> InferReader:
        return self._worker_of(job.target)[0].submit(job)

    def _worker_of(self, target: Target) -> tuple[InferWorker, HandlerCard]:
        """Returns the worker that knows a target. Raises what the first one raises where none does.

        One that is Starting may know it later, and is the first then.
        """
        failure: NotFound | Starting | None = None
        for worker in self._workers:
            try:
                return worker, worker.find(target)
            except Starting as error:
                failure = failure if isinstance(failure, Starting) else error
            except NotFound as error:
                failure = failure or error
        raise failure or NotFound("nothing that can be called is served here", "model", "model_not_found")
