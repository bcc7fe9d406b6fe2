"""Chat completions, the way out: parts to answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corosrv.chat.parser import Parser
from corosrv.chat.parts import End, Part, Text
from corosrv.errors import CorosrvError, JobFailed
from corosrv.generation.tally import Tally
from corosrv.jobs import Chunk, Job, ModelCard
from corosrv.openai import events


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
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def whole(self, chunks: list[Chunk]) -> dict[str, Any]:
        texts = [""] * self._n_choices
        finishes = [""] * self._n_choices
        for part in self._parser.parts(chunks):
            if isinstance(part, Text):
                texts[part.choice] += part.text
            elif isinstance(part, End):
                finishes[part.choice] = part.reason
        for chunk in chunks:
            self._tally.add(chunk)
        choices = [_whole_choice(i, texts[i], finishes[i]) for i in range(self._n_choices)]
        return self._frame.whole(choices, self._tally, self._parser.reasoning_tokens)

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
        if isinstance(part, Text):
            before, after = self._around.get(part.choice) or self._make_around(part.choice)
            return before + events.encode(part.text) + after
        if isinstance(part, End):
            return self._frame.end(_delta(part.choice, {}, part.reason), self._tally, self._parser.reasoning_tokens)
        raise AssertionError(f"no event for {part}")

    def _make_around(self, index: int) -> tuple[bytes, bytes]:
        around = self._frame.around(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )
        self._around[index] = around
        return around

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)


def _delta(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _whole_choice(index: int, text: str, finish: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}
