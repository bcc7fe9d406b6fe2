"""Makes what llama-server adds to OpenAI's answers: how far a job is, and the answer in its own form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from corosrv.contracts.jobs import Chunk, Job, ModelCard, Vocabulary
from corosrv.dialects.generation.call import AnswerOptions, Telemetry
from corosrv.dialects.generation.native import NativeForm, NativeTask
from corosrv.dialects.openai.structured_fields import CompletionFields


def native_form(
    body: CompletionFields, job: Job, card: ModelCard, find_vocabulary: Callable[[], Vocabulary]
) -> NativeForm | None:
    """Makes the form of the native answer if the body asks for one. May wait as `tokenize` does."""
    if not body.verbose:
        return None
    return NativeForm.for_job(
        job, card, find_vocabulary(), bool(body.stream), bool(body.return_tokens), bool(body.timings_per_token)
    )


class LlamaExtras:
    """Makes the members that one answer's events have in addition to OpenAI's."""

    __slots__ = ("_tasks", "_telemetry", "is_wanted")

    def __init__(self, n_tasks: int, options: AnswerOptions) -> None:
        self._telemetry = Telemetry(n_tasks, options)
        form = options.native_form
        self._tasks = [] if form is None else [NativeTask(index, form) for index in range(n_tasks)]
        self.is_wanted = self._telemetry.is_wanted or bool(self._tasks)

    @classmethod
    def for_answer(cls, n_tasks: int, options: AnswerOptions) -> LlamaExtras:
        """Makes the extras of one answer; all answers that want none share the same, which has no state."""
        wants_some = options.token_timings or options.prompt_progress or options.native_form is not None
        return cls(n_tasks, options) if wants_some else _NO_EXTRAS

    def progress(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Yields the extra members of the progress events that are sent before this chunk's events."""
        return self._telemetry.progress(chunk)

    def add(self, chunk: Chunk) -> dict[str, Any]:
        """Takes each chunk once, in order; returns the extra members of the events with its text."""
        if self._tasks:
            self._tasks[chunk.index].add(chunk)
        return self._telemetry.timings(chunk)

    def at_end(self, chunk: Chunk) -> dict[str, Any]:
        """Returns the extra members of the event or answer that ends this terminal chunk's task."""
        return {"verbose": self._tasks[chunk.index].final(chunk)} if self._tasks else {}

    def of_answer(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Returns the extra members of an answer that is not streamed; of several choices, the first one's."""
        if not self._tasks:
            return {}
        for chunk in chunks:
            self.add(chunk)
        return self.at_end(next(chunk for chunk in chunks if chunk.index == 0 and chunk.finish is not None))


_NO_EXTRAS = LlamaExtras(0, AnswerOptions())
