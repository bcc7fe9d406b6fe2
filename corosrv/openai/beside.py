"""What llama-server tells beside OpenAI's answers: how far a job is, and the answer in its own form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from corosrv.generation.native import NativeForm, NativeTask
from corosrv.generation.telemetry import Telemetry, Told, tells_tokens
from corosrv.jobs import Chunk, Job, ModelCard, Vocabulary
from corosrv.openai.fields import CompletionFields


def telling(body: CompletionFields, job: Job) -> Job:
    """The same job, whose chunks tell what a request wants beside."""
    job = Told.of(body, bool(body.stream)).by(job)
    return tells_tokens(job) if body.verbose and body.return_tokens else job


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of it a request asks for."""

    told: Told = field(default_factory=Told)
    form: NativeForm | None = None

    @classmethod
    def of(cls, body: CompletionFields, job: Job, card: ModelCard, vocabulary: Vocabulary) -> Wanted:
        """May wait as `tokenize` does."""
        form, stream = None, bool(body.stream)
        if body.verbose:
            timings = bool(body.timings_per_token)
            form = NativeForm.of(job, card, vocabulary, stream, bool(body.return_tokens), timings)
        return cls(Told.of(body, stream), form)


class Beside:
    """Of one answer: the members that its events have beside OpenAI's."""

    def __init__(self, job: Job, wanted: Wanted) -> None:
        self._telemetry = Telemetry(job.n_tasks, wanted.told)
        self._tasks: list[NativeTask] = []
        if wanted.form is not None:
            self._tasks = [NativeTask(index, wanted.form) for index in range(job.n_tasks)]
        self.is_wanted = self._telemetry.is_wanted or bool(self._tasks)

    def progress(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Of events of their own, before those of the chunk."""
        return self._telemetry.progress(chunk)

    def with_text(self, chunk: Chunk) -> dict[str, Any]:
        """Of the events with the chunk's text. Once for every chunk, in their order."""
        if self._tasks:
            self._tasks[chunk.index].add(chunk)
        return self._telemetry.timings(chunk)

    def at_end(self, chunk: Chunk) -> dict[str, Any]:
        """Of the event or the answer that ends the task of a terminal chunk."""
        return {"__verbose": self._tasks[chunk.index].final(chunk)} if self._tasks else {}

    def of_whole(self, chunks: list[Chunk]) -> dict[str, Any]:
        """Of an answer that is not streamed; with several choices it is the first one's."""
        if not self._tasks:
            return {}
        for chunk in chunks:
            self.with_text(chunk)
        return self.at_end(next(chunk for chunk in chunks if chunk.index == 0 and chunk.finish is not None))
