"""Chat completions, the way out: parts to answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from corosrv.chat.parser import Parser
from corosrv.chat.parts import AnswerText, CallArguments, CallBegin, End, Part, Reasoning
from corosrv.errors import CorosrvError
from corosrv.generation import likelihood
from corosrv.generation.answer_options import AnswerOptions
from corosrv.generation.split_tokens import split_tokens
from corosrv.generation.tally import Tally
from corosrv.jobs import Chunk, Job, ModelCard, TokenInfo
from corosrv.openai import events
from corosrv.openai.llama_extras import LlamaExtras
from corosrv.processor import Turns


class ChatAnswer:
    """Puts one answer together from the chunks of its job."""

    __slots__ = (
        "_extras", "_frame", "_has_logprobs", "_is_post_sampling", "_n_choices", "_parser", "_tally", "_text_frames"
    )  # fmt: skip

    def __init__(self, job: Job, card: ModelCard, parser: Parser, options: AnswerOptions) -> None:
        self._n_choices = job.n_tasks
        self._tally = Tally(job.n)
        self._parser = parser
        kind = "chat.completion.chunk" if options.stream else "chat.completion"
        self._frame = events.Frame("chatcmpl-", kind, card, job.n_tasks, options.usage)
        self._has_logprobs = options.logprobs
        self._is_post_sampling = job.sampling.post_sampling_probs
        self._extras = LlamaExtras(job.n_tasks, options)
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._text_frames: dict[int, tuple[bytes, bytes]] = {}

    def complete(self, chunks: list[Chunk]) -> dict[str, Any]:
        choices = [_Choice(index) for index in range(self._n_choices)]
        for part in self._parser.parts(chunks):
            choices[part.choice].add(part)
        for chunk in chunks:
            self._tally.add(chunk)
        whole = [choice.complete(self._logprobs(choice.tokens)) for choice in Turns().among(choices)]
        answer = self._frame.complete(whole, self._tally, self._parser.reasoning_tokens)
        return answer | self._extras.of_answer(chunks)

    def first(self) -> bytes:
        delta = {"role": "assistant", "content": None}
        return b"".join(self._frame.event(_delta(i, delta)) for i in range(self._n_choices))

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        for chunk in chunks:
            self._tally.add(chunk)
        sent: list[bytes] = []
        if self._extras.is_wanted:
            for chunk in split_tokens(chunks):
                sent += self._events_with_extras(chunk)
        else:
            sent += map(self._event, self._parser.parts(chunks))
        return b"".join(sent)

    def _events_with_extras(self, chunk: Chunk) -> Iterator[bytes]:
        for progress in self._extras.progress(chunk):
            yield self._frame.event(_delta(chunk.index, {}), **progress)
        extras = self._extras.add(chunk)
        for part in self._parser.parts((chunk,)):
            if isinstance(part, End):
                yield self._event(part, **self._extras.at_end(chunk))
            elif extras or self._has_logprobs or not isinstance(part, AnswerText) or part.text:
                yield self._event(part, **extras)

    def _event(self, part: Part, **extras: Any) -> bytes:
        if isinstance(part, AnswerText) and not self._has_logprobs and not extras:
            prefix, suffix = self._text_frames.get(part.choice) or self._make_text_frame(part.choice)
            return prefix + events.encode(part.text) + suffix
        if isinstance(part, AnswerText):
            # Tokens that add no text, as the last one, come without any.
            delta = {"content": part.text} if part.text else {}
            return self._frame.event(_delta(part.choice, delta, logprobs=self._logprobs(part.tokens)), **extras)
        if isinstance(part, End):
            end = _delta(part.choice, {}, part.reason)
            return self._frame.end(end, self._tally, self._parser.reasoning_tokens, **extras)
        return self._frame.event(_delta_of(part), **extras)

    def _logprobs(self, tokens: Iterable[TokenInfo]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        return {"content": [likelihood.of(token, self._is_post_sampling) for token in tokens], "refusal": None}

    def _make_text_frame(self, index: int) -> tuple[bytes, bytes]:
        frame = self._frame.text_frame(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )
        self._text_frames[index] = frame
        return frame

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)


def _delta(
    index: int, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _delta_of(part: Reasoning | CallBegin | CallArguments) -> dict[str, Any]:
    match part:
        case Reasoning():
            return _delta(part.choice, {"reasoning_content": part.text})
        case CallBegin():
            return _delta(part.choice, {"tool_calls": [{"index": part.call, **_call(part.id, part.name, "")}]})
        case CallArguments():
            called = {"index": part.call, "function": {"arguments": part.piece}}
            return _delta(part.choice, {"tool_calls": [called]})


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class _Choice:
    """One choice of an answer that is not streamed."""

    def __init__(self, index: int) -> None:
        self.tokens: list[TokenInfo] = []
        self._index = index
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[tuple[CallBegin, list[str]]] = []
        self._finish = ""

    def add(self, part: Part) -> None:
        match part:
            case AnswerText():
                self._text.append(part.text)
                self.tokens += part.tokens
            case Reasoning():
                self._thoughts.append(part.text)
            case CallBegin():
                self._calls.append((part, []))
            case CallArguments():
                self._calls[part.call][1].append(part.piece)
            case End():
                self._finish = part.reason

    def complete(self, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text), "refusal": None}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [_call(begin.id, begin.name, "".join(pieces)) for begin, pieces in self._calls]
        return {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": self._finish}
