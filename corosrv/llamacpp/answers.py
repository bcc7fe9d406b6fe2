"""llama-server's completions, the way out: chunks to answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from corosrv.errors import CorosrvError
from corosrv.generation.answer_options import AnswerOptions
from corosrv.generation.events import event
from corosrv.generation.native import NativeTask
from corosrv.generation.split_tokens import split_tokens
from corosrv.generation.telemetry import Telemetry
from corosrv.jobs import Chunk
from corosrv.openai import events
from corosrv.turns import Turns


class NativeAnswer:
    """Puts one answer together from the chunks of its job."""

    __slots__ = ("_options", "_tasks", "_telemetry")

    def __init__(self, options: AnswerOptions) -> None:
        """The options have a native form."""
        form = options.native_form
        assert form is not None
        self._options = options
        self._telemetry = Telemetry(form.job.n_tasks, options)
        self._tasks = [NativeTask(index, form) for index in range(form.job.n_tasks)]

    def whole(self, chunks: list[Chunk]) -> Any:
        last: dict[int, Chunk] = {}
        for chunk in chunks:
            task = self._tasks[chunk.index]
            task.add(task.clip(chunk))
            if chunk.finish is not None:
                last[chunk.index] = chunk
        answers = [self._final(last[index]) for index in Turns().among(range(len(self._tasks)))]
        return answers if self._options.is_list else answers[0]

    def first(self) -> bytes:
        return b":\n\n"

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        sent = b""
        for one in split_tokens(chunks):
            task = self._tasks[one.index]
            chunk = task.clip(one)
            for progress in self._telemetry.progress(chunk):
                sent += event(task.partial(_without_text(chunk)) | progress)
            task.add(chunk)
            timings = self._telemetry.timings(chunk)
            if chunk.text or (chunk.tokens and chunk.finish is None):
                sent += event(task.partial(chunk) | timings)
            if chunk.finish is not None:
                sent += event(self._final(chunk))
        return sent

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)

    def _final(self, chunk: Chunk) -> dict[str, Any]:
        members = self._tasks[chunk.index].final(chunk)
        return pick(members, self._options.members) if self._options.members else members


def _without_text(chunk: Chunk) -> Chunk:
    return Chunk(chunk.index, "", 0, prompt_tokens=chunk.prompt_tokens)


def pick(members: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Members by name or by path, `a/b`, under which they then stand; those that there are not are left out."""
    picked = {}
    for path in fields:
        value: Any = members
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            picked[path] = value
    return picked
