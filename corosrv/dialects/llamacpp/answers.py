"""Makes llama-server's completions of chunks, and defines the types of all its answers.

The type of a completion is in `corosrv.dialects.generation.native`: other dialects show it in addition to theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Chunk
from corosrv.dialects.generation.call import AnswerOptions, Telemetry, event, split_tokens
from corosrv.dialects.generation.native import NativeCompletion, NativeTask
from corosrv.dialects.openai import events


class TokenPiece(msgspec.Struct):
    """A token, and what it prints: text, or bytes that are none by themselves."""

    id: int
    piece: str | list[int]


class TokenList(msgspec.Struct):
    tokens: list[int | TokenPiece]


class Content(msgspec.Struct):
    content: str


class PromptText(msgspec.Struct):
    """The prompt that the model's template makes of a conversation."""

    prompt: str


class ServerProperties(msgspec.Struct):
    """The properties of the server and its model."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool
    status: dict[str, Any]


class SlotDescription(msgspec.Struct):
    """One concurrency lane of the model, and how far its job is; nobody's text is in it."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class ListedAdapter(msgspec.Struct):
    id: int
    path: str
    scale: float


class SlotFileAnswer(msgspec.Struct):
    """The tokens and bytes that were saved, restored or erased."""

    id_slot: int
    filename: str | msgspec.UnsetType = msgspec.UNSET
    n_saved: int | msgspec.UnsetType = msgspec.UNSET
    n_written: int | msgspec.UnsetType = msgspec.UNSET
    n_restored: int | msgspec.UnsetType = msgspec.UNSET
    n_read: int | msgspec.UnsetType = msgspec.UNSET
    n_erased: int | msgspec.UnsetType = msgspec.UNSET
    timings: dict[str, float] | msgspec.UnsetType = msgspec.UNSET


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

    def complete(self, chunks: list[Chunk]) -> Any:
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
        stream = b""
        for token_chunk in split_tokens(chunks):
            task = self._tasks[token_chunk.index]
            chunk = task.clip(token_chunk)
            for progress in self._telemetry.progress(chunk):
                stream += event(task.partial(Chunk(chunk.index, "", 0, prompt_tokens=chunk.prompt_tokens), **progress))
            task.add(chunk)
            timings = self._telemetry.timings(chunk)
            if chunk.text or (chunk.tokens and chunk.finish is None):
                stream += event(task.partial(chunk, **timings))
            if chunk.finish is not None:
                stream += event(self._final(chunk))
        return stream

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)

    def _final(self, chunk: Chunk) -> NativeCompletion | dict[str, Any]:
        completion = self._tasks[chunk.index].final(chunk)
        if not self._options.members:
            return completion
        return _pick(completion, self._options.members)


def _pick(completion: NativeCompletion, fields: Iterable[str]) -> dict[str, Any]:
    """Picks members by name or by path, `a/b`, which becomes their name. Leaves out those that do not exist."""
    picked = {}
    for path in fields:
        value: Any = completion
        for name in path.split("/"):
            members = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
            value = members.get(name, msgspec.UNSET) if isinstance(members, dict) else msgspec.UNSET
        if value is not msgspec.UNSET:
            picked[path] = value
    return picked
