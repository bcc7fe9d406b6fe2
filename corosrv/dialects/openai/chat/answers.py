"""Chat completions, the way out: parts to answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from corosrv.base.errors import CorosrvError
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Chunk, Job, ModelCard, TokenInfo
from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, End, Part, Reasoning
from corosrv.dialects.chat.prepare import Parser
from corosrv.dialects.generation import native
from corosrv.dialects.generation.call import AnswerOptions, split_tokens
from corosrv.dialects.generation.job_usage import Tally
from corosrv.dialects.openai import events
from corosrv.dialects.openai.answer_types import (
    AnswerMessage,
    AnswerToolCall,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    Finish,
    FunctionDelta,
    MessageDelta,
    ToolCallDelta,
)
from corosrv.dialects.openai.events import LlamaExtras

_COMPLETION = (ChatCompletion, "chat.completion")
_CHUNK = (ChatChunk, "chat.completion.chunk")
_NOTHING = MessageDelta()


class ChatAnswer:
    """Puts one answer together from the chunks of its job."""

    __slots__ = (
        "_extras", "_frame", "_has_logprobs", "_is_post_sampling", "_n_choices", "_parser", "_tally", "_text_frames"
    )  # fmt: skip

    def __init__(self, job: Job, card: ModelCard, parser: Parser, options: AnswerOptions) -> None:
        self._n_choices = n_choices = job.n_tasks
        self._tally = Tally(job.n, is_predicted=bool(job.prediction))
        self._parser = parser
        answer_type, kind = _CHUNK if options.stream else _COMPLETION
        self._frame = events.Frame(answer_type, "chatcmpl-", kind, card, n_choices, options)
        self._has_logprobs = options.logprobs
        self._is_post_sampling = job.sampling.post_sampling_probs
        self._extras = LlamaExtras.for_answer(n_choices, options)
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._text_frames: dict[int, tuple[bytes, bytes]] = {}

    @property
    def id(self) -> str:
        return self._frame.id

    def complete(self, chunks: list[Chunk]) -> ChatCompletion:
        choices = [_WholeChoice(index) for index in range(self._n_choices)]
        for part in self._parser.parts(chunks):
            choices[part.choice].add(part)
        for chunk in chunks:
            self._tally.add(chunk)
        finished = choices if len(choices) == 1 else Turns().among(choices)
        chat_choices = [choice.chat_choice(self._logprobs(choice.tokens)) for choice in finished]
        extras = self._extras.of_answer(chunks)
        answer: ChatCompletion = self._frame.complete(
            chat_choices, self._tally, self._parser.reasoning_tokens, **extras
        )
        return answer

    def first(self) -> bytes:
        delta = MessageDelta(role="assistant", content=None)
        return b"".join(self._frame.event(ChunkChoice(i, delta, None, None)) for i in range(self._n_choices))

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
            yield self._frame.event(ChunkChoice(chunk.index, _NOTHING, None, None), **progress)
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
            delta = MessageDelta(content=part.text) if part.text else _NOTHING
            return self._frame.event(ChunkChoice(part.choice, delta, self._logprobs(part.tokens), None), **extras)
        if isinstance(part, End):
            end = ChunkChoice(part.choice, _NOTHING, None, events.finish_word(part.reason))
            return self._frame.end(end, self._tally, self._parser.reasoning_tokens, **extras)
        return self._frame.event(ChunkChoice(part.choice, _delta(part), None, None), **extras)

    def _logprobs(self, tokens: Iterable[TokenInfo]) -> ChatLogprobs | None:
        if not self._has_logprobs:
            return None
        return ChatLogprobs(native.describe_all(tokens, self._is_post_sampling))

    def _make_text_frame(self, index: int) -> tuple[bytes, bytes]:
        frame = self._frame.text_frame(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )
        self._text_frames[index] = frame
        return frame

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)


def _delta(part: Reasoning | CallBegin | CallArguments) -> MessageDelta:
    match part:
        case Reasoning():
            return MessageDelta(reasoning_content=part.text)
        case CallBegin():
            call = ToolCallDelta(part.call, part.id, "function", FunctionDelta(part.name, ""))
        case CallArguments():
            call = ToolCallDelta(part.call, function=FunctionDelta(arguments=part.piece))
    return MessageDelta(tool_calls=[call])


def _call(begin: CallBegin, arguments: str) -> AnswerToolCall:
    return AnswerToolCall(begin.id, "function", CalledFunction(begin.name, arguments))


class _WholeChoice:
    """One choice of an answer that is not streamed."""

    def __init__(self, index: int) -> None:
        self.tokens: list[TokenInfo] = []
        self._index = index
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[tuple[CallBegin, list[str]]] = []
        self._finish: Finish | None = None

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
                self._finish = events.finish_word(part.reason)

    def chat_choice(self, logprobs: ChatLogprobs | None) -> ChatChoice:
        assert self._finish is not None
        message = AnswerMessage("assistant", "".join(self._text), None)
        if self._thoughts:
            message.reasoning_content = "".join(self._thoughts)
        if self._calls:
            message.content = message.content or None
            message.tool_calls = [_call(begin, "".join(pieces)) for begin, pieces in self._calls]
        return ChatChoice(self._index, message, logprobs, self._finish)
