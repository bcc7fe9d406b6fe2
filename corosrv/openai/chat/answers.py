"""Chat completions, the way out: parts to answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corosrv.chat.parser import Parser
from corosrv.chat.parts import CallArguments, CallBegin, End, Part, Reasoning, Text
from corosrv.errors import CorosrvError, JobFailed
from corosrv.generation.tally import Tally
from corosrv.jobs import Chunk, Job, ModelCard, TokenInfo
from corosrv.openai import events
from corosrv.openai.chat import logprobs


class ChatAnswer:
    """One answer being put together."""

    def __init__(
        self,
        job: Job,
        card: ModelCard,
        prompt_tokens: Iterable[int],
        parser: Parser,
        stream: bool,
        include_usage: bool,
    ) -> None:
        self._n_choices = job.n_tasks
        self._tally = Tally(sum(prompt_tokens), job.n)
        self._parser = parser
        kind = "chat.completion.chunk" if stream else "chat.completion"
        self._frame = events.Frame("chatcmpl-", kind, card, job.n_tasks, include_usage)
        self._has_logprobs = job.sampling.n_probs >= 0
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def whole(self, chunks: list[Chunk]) -> dict[str, Any]:
        choices = [_Choice(index, self._has_logprobs) for index in range(self._n_choices)]
        for part in self._parser.parts(chunks):
            choices[part.choice].add(part)
        for chunk in chunks:
            self._tally.add(chunk)
        return self._frame.whole([one.whole() for one in choices], self._tally, self._parser.reasoning_tokens)

    def first(self) -> bytes:
        delta = {"role": "assistant", "content": None}
        return b"".join(self._frame.event(_delta(i, delta)) for i in range(self._n_choices))

    def events(self, chunks: list[Chunk]) -> bytes:
        for chunk in chunks:
            self._tally.add(chunk)
        sent: list[bytes] = []
        try:
            for part in self._parser.parts(chunks):
                sent.append(self._event(part))
        except JobFailed as error:
            error.unsent = b"".join(sent)
            raise
        return b"".join(sent)

    def _event(self, part: Part) -> bytes:
        if isinstance(part, Text) and not self._has_logprobs:
            before, after = self._around.get(part.choice) or self._make_around(part.choice)
            return before + events.encode(part.text) + after
        if isinstance(part, End):
            return self._frame.end(_delta(part.choice, {}, part.reason), self._tally, self._parser.reasoning_tokens)
        return self._frame.event(_delta_of(part))

    def _make_around(self, index: int) -> tuple[bytes, bytes]:
        around = self._frame.around(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )
        self._around[index] = around
        return around

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)


def _delta(
    index: int, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _delta_of(part: Part) -> dict[str, Any]:
    """A part that is neither plain text nor the end."""
    match part:
        case Text():
            # Tokens that add no text, as the last one, come without any.
            return _delta(part.choice, {"content": part.text} if part.text else {}, logprobs=logprobs.of(part.tokens))
        case Reasoning():
            return _delta(part.choice, {"reasoning_content": part.text})
        case CallBegin():
            return _delta(part.choice, {"tool_calls": [{"index": part.call, **_call(part.id, part.name, "")}]})
        case CallArguments():
            called = {"index": part.call, "function": {"arguments": part.piece}}
            return _delta(part.choice, {"tool_calls": [called]})
        case End():
            return _delta(part.choice, {}, part.reason)


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class _Choice:
    """One choice of an answer that is not streamed."""

    def __init__(self, index: int, has_logprobs: bool) -> None:
        self._index = index
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[tuple[CallBegin, list[str]]] = []
        self._tokens: list[TokenInfo] | None = [] if has_logprobs else None
        self._finish = ""

    def add(self, part: Part) -> None:
        match part:
            case Text():
                self._text.append(part.text)
                if self._tokens is not None:
                    self._tokens += part.tokens
            case Reasoning():
                self._thoughts.append(part.text)
            case CallBegin():
                self._calls.append((part, []))
            case CallArguments():
                self._calls[part.call][1].append(part.piece)
            case End():
                self._finish = part.reason

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text), "refusal": None}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [_call(begin.id, begin.name, "".join(pieces)) for begin, pieces in self._calls]
        told = None if self._tokens is None else logprobs.of(self._tokens)
        return {"index": self._index, "message": message, "logprobs": told, "finish_reason": self._finish}
