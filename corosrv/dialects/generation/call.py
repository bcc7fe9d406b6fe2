"""A request after its dialect has translated it: the job, and what makes its answer.

`AnswerOptions` say what an answer shows besides its text. A stream is server-sent events (`event`). Two things are as
llama-server has them: chunks that nobody read in time have become one and are split into tokens again, as its clients
count events; and events tell how far the job is, where a client asks for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk, Job, ModelCard, Reader, TokenInfo
from corosrv.dialects.generation.fields import GenerationFields
from corosrv.dialects.generation.forks import ForkableAnswer
from corosrv.dialects.generation.job_usage import PromptProgress, Tally
from corosrv.dialects.generation.native import NativeForm


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that stands in front of its answers."""

    text: str
    offset: int = 0  # where its first token begins in the text: before it, when the model was given one in front


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one answer; each dialect fills in those that it offers."""

    stream: bool = False
    usage: bool = False  # at the end of a stream
    compute: bool = False  # the usage has the milliseconds of the machine
    service_tier: str = ""  # that the answer names
    token_timings: bool = False  # with every token of a stream
    prompt_progress: bool = False  # at the beginning of a stream, while the prompt is read
    logprobs: bool = False  # in the dialect's own form
    probs: bool = False  # the same in llama-server's form
    n: int = 1  # answers to each prompt: the best of those that the job tries
    echoes: tuple[Echo, ...] | None = None  # of each prompt
    native_form: NativeForm | None = None  # the answer in llama-server's form, alone or next to the dialect's
    is_list: bool = False  # the answer is a list, however many there are
    members: tuple[str, ...] = ()  # that are picked from the answer; none: all of them

    @classmethod
    def from_fields(cls, fields: GenerationFields, **options: Any) -> AnswerOptions:
        """Makes the options that all dialects read from the same fields, and those given."""
        stream = bool(fields.stream)
        return cls(
            stream=stream,
            token_timings=stream and bool(fields.timings_per_token),
            prompt_progress=stream and bool(fields.return_progress),
            **options,
        )


class Answer(Protocol):
    """A dialect's translation out, for one request: chunks to one answer, or to events."""

    def complete(self, chunks: list[Chunk]) -> Any:
        """Makes the answer that is not streamed, a value for JSON. No task has failed.

        An abort of the group may have cancelled some.
        """

    def first(self) -> bytes:
        """Makes the bytes that are sent as soon as the job is taken: at least a comment, which carries the headers."""

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        """Makes the events for these chunks, and the end of the stream after the last. No task of them has failed."""

    def failure(self, error: CorosrvError) -> bytes:
        """Makes the event of an error that ends the stream."""


Read = Callable[[Reader[Chunk]], Reader[Chunk]]


class Call(msgspec.Struct, frozen=True):
    """A request translated: the job, and what makes its answer from the job's chunks."""

    job: Job
    stream: bool
    answer: Answer
    priority: int | None = None  # the body's; 0 and None leave it to the request's header
    is_lines: bool = False  # a stream is lines of JSON, not server-sent events
    forkable: ForkableAnswer | None = None  # keeps the answer's tokens
    card: ModelCard | None = None  # of the model that answers; None: it is looked up
    read: Read | None = None  # ends the answer where its text says so, before the job would
    controlled: str = ""  # the id by which the client may end the answer's thoughts
    ping_interval: float | None = None  # seconds of silence before a comment in its stream; None: the server's own


def event(value: Any) -> bytes:
    """Encodes a JSON value as one event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """Encodes a JSON value as one event that has a name."""
    return b"event: " + name.encode() + b"\n" + event(value)


def split_tokens(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Splits chunks into chunks of one token each, for jobs that tell their tokens.

    Tokens that make a character together stay together, and so do those of which a stop string left a part.
    """
    for chunk in chunks:
        if len(chunk.tokens) < 2:
            yield chunk
        else:
            yield from _split(chunk)


def _split(chunk: Chunk) -> Iterator[Chunk]:
    data = chunk.text.encode()
    if data != b"".join(token.piece for token in chunk.tokens):
        yield chunk
        return
    *firsts, last = _groups(data, chunk.tokens)
    n_left = chunk.n_tokens
    for text, tokens in firsts:
        # What was held back for a while was counted when it was generated.
        n_tokens = min(len(tokens), n_left)
        n_left -= n_tokens
        yield msgspec.structs.replace(chunk, text=text, tokens=tokens, n_tokens=n_tokens, finish=None)
    yield msgspec.structs.replace(chunk, text=last[0], tokens=last[1], n_tokens=n_left)


def _groups(data: bytes, tokens: tuple[TokenInfo, ...]) -> Iterator[tuple[str, tuple[TokenInfo, ...]]]:
    """Texts of whole characters, each with its tokens."""
    begin = end = 0
    group: list[TokenInfo] = []
    for number, token in enumerate(tokens, 1):
        group.append(token)
        end += len(token.piece)
        is_boundary = end == len(data) or data[end] & 0xC0 != 0x80
        if is_boundary or number == len(tokens):
            yield data[begin:end].decode(), tuple(group)
            begin, group = end, []


class Telemetry:
    """Makes the members that tell in one stream's events how far its job is."""

    __slots__ = ("_has_progress", "_has_timings", "_n_read", "_tallies", "is_wanted")

    def __init__(self, n_tasks: int, options: AnswerOptions) -> None:
        self._has_timings = options.token_timings
        self._has_progress = options.prompt_progress
        self.is_wanted = self._has_timings or self._has_progress
        self._tallies = [Tally() for _ in range(n_tasks)] if self._has_timings else []
        self._n_read = [-1] * n_tasks if self._has_progress else []  # tokens of each task's prompt, as last told

    def progress(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Yields the members of the events that tell, before those of this chunk, how much of its prompt was read."""
        if not self._has_progress:
            return
        last_told = self._n_read[chunk.index]
        if chunk.read_tokens <= last_told:
            return
        self._n_read[chunk.index] = chunk.read_tokens
        if last_told < 0 and chunk.read_tokens > chunk.cached_tokens:
            # The chunk that told of the beginning is part of this one: nobody read it before there was more.
            yield _progress(chunk, chunk.cached_tokens, 0.0)
        yield _progress(chunk, chunk.read_tokens, chunk.prompt_ms)

    def timings(self, chunk: Chunk) -> dict[str, Any]:
        """Takes each chunk once, in order; returns the members that its tokens bring, none where it has none."""
        if not self._has_timings:
            return {}
        tally = self._tallies[chunk.index]
        tally.add(chunk)
        return {"timings": tally.as_of(chunk).timings()} if chunk.tokens else {}


def _progress(chunk: Chunk, n_read: int, ms: float) -> dict[str, Any]:
    progress = PromptProgress(chunk.prompt_tokens, chunk.cached_tokens, n_read, round(ms))
    return {
        "timings": Tally(prompt_tokens=n_read, cached_tokens=chunk.cached_tokens, prompt_ms=ms).timings(),
        "prompt_progress": progress,
    }


def vectors_of(chunks: Iterable[Chunk]) -> list[bytes]:
    """Returns each task's vector. Raises JobFailed when a task ended in an error."""
    return [last.vector for last in _terminal(chunks)]


def prompt_tokens_of(chunks: Iterable[Chunk]) -> list[int]:
    """Returns each task's number of prompt tokens, in the order of the tasks. Raises as `vectors_of` does."""
    return [last.prompt_tokens for last in _terminal(chunks)]


def _terminal(chunks: Iterable[Chunk]) -> list[Chunk]:
    last: dict[int, Chunk] = {}
    for chunk in chunks:
        if chunk.finish is not None:
            last[chunk.index] = chunk
    return [last[index] for index in sorted(last)]


def floats(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
