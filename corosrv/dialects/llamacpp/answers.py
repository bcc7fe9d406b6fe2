"""Makes llama-server's completions of chunks, and defines the types of all its answers.

The type of a completion is in `corosrv.dialects.generation.native`: other dialects show it in addition to theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Chunk, Finish, Reader
from corosrv.contracts.jobs.reader import Sink
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
    media_marker: str  # for which images of `multimodal_data` stand in a text


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


class Indent:
    """Ends a text at the first line that is indented by less than `least`, as llama-server does.

    Spaces and tabs count alike. The first line has no say: it goes on with one that stands before the gap.
    """

    def __init__(self, least: int) -> None:
        self.is_over = False
        self._least = least
        self._so_far: int | None = None  # of the line that has begun, while it has nothing else

    def take(self, text: str) -> str:
        """Returns the part of the next piece that still belongs to the text."""
        if self.is_over:
            return ""
        for place, character in enumerate(text):
            if self._so_far is not None:
                if character in " \t":
                    self._so_far += 1
                    continue
                if self._so_far < self._least:
                    self.is_over = True
                    return text[:place]
            self._so_far = 0 if character == "\n" else None
        return text


class IndentReader(Reader[Chunk]):
    """Reads a job whose texts end where their `Indent` says so; its tasks are cancelled once all of them have ended."""

    def __init__(self, reader: Reader[Chunk], n_tasks: int, least: int) -> None:
        self._reader = reader
        self._indents = [Indent(least) for _ in range(n_tasks)]

    @property
    def is_finished(self) -> bool:
        return self._reader.is_finished

    def take(self, timeout: float | None = None) -> list[Chunk]:
        chunks: list[Chunk] = []
        while not chunks and not self._reader.is_finished:
            chunks = self._clip(self._reader.take(timeout))
        return chunks

    def pump(self, sink: Sink[Chunk], timeout: float | None = None) -> None:
        def pass_on(arrived: list[Chunk]) -> bool:
            chunks = self._clip(arrived)
            return not chunks or sink(chunks)

        self._reader.pump(pass_on, timeout)

    def cancel(self) -> None:
        self._reader.cancel()

    def close(self) -> None:
        self._reader.close()

    def _clip(self, chunks: list[Chunk]) -> list[Chunk]:
        """Returns the chunks without what comes behind the ends of their texts."""
        kept: list[Chunk] = []
        for chunk in split_tokens(chunks):
            indent = self._indents[chunk.index]
            was_over = indent.is_over
            if chunk.finish is Finish.ERROR:  # whose text is a message
                kept.append(chunk)
                continue
            text = indent.take(chunk.text)
            if not indent.is_over:
                kept.append(chunk)
            elif chunk.finish is not None or not was_over:
                kept.append(
                    msgspec.structs.replace(
                        chunk,
                        text=text,
                        n_tokens=0 if was_over else chunk.n_tokens,
                        tokens=(),
                        finish=chunk.finish and Finish.LENGTH,
                        stopping_word="",
                    )
                )
        if all(indent.is_over for indent in self._indents):
            self._reader.cancel()
        return kept


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
            task.add(chunk)
            if chunk.finish is not None:
                last[chunk.index] = chunk
        answers = [self._final(last[index]) for index in Turns().among(range(len(self._tasks)))]
        return answers if self._options.is_list else answers[0]

    def first(self) -> bytes:
        return b":\n\n"

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        stream = b""
        for chunk in split_tokens(chunks):
            task = self._tasks[chunk.index]
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
