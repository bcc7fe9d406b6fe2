"""Jobs know who asked for them, and no adapter has to: a Worker in front of another that writes it down."""

from __future__ import annotations

from dataclasses import replace

from flask import g, has_app_context

from corosrv.jobs import AnyJob, Job, ModelCard, Reader, State, Vocabulary, Worker


class AskedFor:
    """Hands jobs on to `worker`, each with the caller of the request at hand. Everything else is the worker's own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def submit(self, job: AnyJob) -> Reader:
        caller = g.get("corosrv_caller", "") if has_app_context() else ""
        return self._worker.submit(replace(job, caller=caller) if isinstance(job, Job) else job)

    @property
    def state(self) -> State:
        return self._worker.state

    def check(self) -> None:
        self._worker.check()

    def models(self) -> tuple[ModelCard, ...]:
        return self._worker.models()

    def card(self, model: str | None) -> ModelCard:
        return self._worker.card(model)

    def vocabulary(self, model: str | None) -> Vocabulary:
        return self._worker.vocabulary(model)
