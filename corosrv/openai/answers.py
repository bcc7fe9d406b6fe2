"""Chunks to answers: whole ones and events, with usage, timings and finish reasons."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.errors import JobFailed
from corosrv.jobs import Chunk, Finish, ModelCard
from corosrv.openai.calls import Call

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


def event(value: Any) -> bytes:
    """One server-sent event of a JSON value."""
    return b"data: " + _encode(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """Where chat and text completions differ: names, and where the text goes."""

    id_prefix: str
    object: str
    chunk_object: str
    # A choice of a whole answer: index, text, finish reason.
    whole: Callable[[int, str, str], dict[str, Any]]
    # A choice of an event with text: what stands before and after the JSON string of the text.
    around_text: Callable[[int], tuple[bytes, bytes]]
    # The choice that ends one: index, finish reason.
    last: Callable[[int, str], dict[str, Any]]
    # The choice that begins one, or None.
    first: Callable[[int], dict[str, Any]] | None


def _choice(index: int, finish: str | None, **content: Any) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish}


CHAT = Shape(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    whole=lambda i, text, finish: _choice(i, finish, message={"role": "assistant", "content": text, "refusal": None}),
    around_text=lambda i: (
        b'{"index":%d,"delta":{"content":' % i,
        b'},"logprobs":null,"finish_reason":null}',
    ),
    last=lambda i, finish: _choice(i, finish, delta={}),
    first=lambda i: _choice(i, None, delta={"role": "assistant", "content": None}),
)
TEXT = Shape(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    whole=lambda i, text, finish: _choice(i, finish, text=text),
    around_text=lambda i: (b'{"index":%d,"text":' % i, b',"logprobs":null,"finish_reason":null}'),
    last=lambda i, finish: _choice(i, finish, text=""),
    first=None,
)


@dataclass(slots=True)
class Tally:
    """What a job has used so far; prompt tokens count once, however many answers each prompt gets."""

    prompt_tokens: int
    n: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0

    def add(self, chunk: Chunk) -> None:
        self.completion_tokens += chunk.n_tokens
        if chunk.finish is None:
            return
        self.prompt_ms = max(self.prompt_ms, chunk.prompt_ms)
        self.decode_ms = max(self.decode_ms, chunk.decode_ms)
        if chunk.index % self.n == 0:
            self.cached_tokens += chunk.cached_tokens

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def timings(self) -> dict[str, Any]:
        """As llama-server reports them; rates leave out the first token, which comes from the prompt's batch."""
        computed = self.prompt_tokens - self.cached_tokens
        n_after_first = max(self.completion_tokens - 1, 0)
        return {
            "cache_n": self.cached_tokens,
            "prompt_n": computed,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _ratio(self.prompt_ms, computed),
            "prompt_per_second": _ratio(1000.0 * computed, self.prompt_ms),
            "predicted_n": self.completion_tokens,
            "predicted_ms": self.decode_ms,
            "predicted_per_token_ms": _ratio(self.decode_ms, n_after_first),
            "predicted_per_second": _ratio(1000.0 * n_after_first, self.decode_ms),
        }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def _check(chunk: Chunk, unsent: bytes = b"") -> None:
    if chunk.finish is Finish.ERROR:
        raise JobFailed(chunk.text, unsent)
    if chunk.finish is Finish.CANCELLED:
        raise JobFailed("the request was cancelled", unsent)


class Answer:
    """One answer being put together: the members that all its parts share, and what it has used."""

    def __init__(self, shape: Shape, call: Call, model: ModelCard, prompt_tokens: Iterable[int]) -> None:
        self._shape = shape
        self._n_choices = call.job.n_tasks
        self._include_usage = call.include_usage
        self._tally = Tally(sum(prompt_tokens), call.job.n)
        self._n_finished = 0
        self._members = {
            "id": shape.id_prefix + secrets.token_hex(16),
            "object": shape.chunk_object if call.stream else shape.object,
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": model.fingerprint,
        }
        # What stands before and after the text, a JSON string, in an event of each choice.
        self._around = self._events_around_text() if call.stream else []

    def _events_around_text(self) -> list[tuple[bytes, bytes]]:
        prefix = b"data: " + _encode(self._members)[:-1] + b',"choices":['
        suffix = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"
        around = map(self._shape.around_text, range(self._n_choices))
        return [(prefix + before, after + suffix) for before, after in around]

    def whole(self, chunks: Iterable[Chunk]) -> dict[str, Any]:
        """The answer that is not streamed. Raises JobFailed when a task ended in an error."""
        texts = [""] * self._n_choices
        finishes = [""] * self._n_choices
        for chunk in chunks:
            _check(chunk)
            self._tally.add(chunk)
            texts[chunk.index] += chunk.text
            if chunk.finish is not None:
                finishes[chunk.index] = chunk.finish.value
        choices = [self._shape.whole(i, texts[i], finishes[i]) for i in range(self._n_choices)]
        return {
            **self._members, "choices": choices, "usage": self._tally.usage(), "timings": self._tally.timings()
        }  # fmt: skip

    def first(self) -> bytes:
        """What is sent as soon as the job is taken: the role, or a comment that carries the headers."""
        if self._shape.first is None:
            return b":\n\n"
        return b"".join(self._event(self._shape.first(i)) for i in range(self._n_choices))

    def events(self, chunks: list[Chunk]) -> bytes:
        """What these chunks look like on the wire. Raises JobFailed when a task ended in an error."""
        sent = b""
        for chunk in chunks:
            if chunk.finish is not None:
                _check(chunk, sent)
            self._tally.add(chunk)
            if text := chunk.text:
                before, after = self._around[chunk.index]
                sent += before + _encode(text) + after
            if chunk.finish is not None:
                sent += self._end(chunk)
        return sent

    def _end(self, chunk: Chunk) -> bytes:
        self._n_finished += 1
        is_last = self._n_finished == self._n_choices
        assert chunk.finish is not None
        last = self._shape.last(chunk.index, chunk.finish.value)
        if not is_last:
            return self._event(last)
        if not self._include_usage:
            return self._event(last, timings=self._tally.timings()) + DONE
        usage = {"choices": [], "usage": self._tally.usage(), "timings": self._tally.timings()}
        return self._event(last) + event(self._members | usage) + DONE

    def _event(self, choice: dict[str, Any], **more: Any) -> bytes:
        if self._include_usage:
            more["usage"] = None
        return event({**self._members, "choices": [choice], **more})
