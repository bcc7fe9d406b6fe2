"""Text completions, the way out: chunks to answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corosrv.errors import CorosrvError
from corosrv.generation.tally import Tally, check
from corosrv.jobs import Chunk, Job, ModelCard
from corosrv.openai import events


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


class TextAnswer:
    """One answer being put together."""

    def __init__(self, job: Job, card: ModelCard, prompt_tokens: Iterable[int], include_usage: bool) -> None:
        self._n_choices = job.n_tasks
        self._tally = Tally(sum(prompt_tokens), job.n)
        self._frame = events.Frame("cmpl-", "text_completion", card, job.n_tasks, include_usage)
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def whole(self, chunks: list[Chunk]) -> dict[str, Any]:
        texts = [""] * self._n_choices
        finishes = [""] * self._n_choices
        for chunk in chunks:
            check(chunk)
            self._tally.add(chunk)
            texts[chunk.index] += chunk.text
            if chunk.finish is not None:
                finishes[chunk.index] = chunk.finish.value
        return self._frame.whole(list(map(_choice, range(self._n_choices), texts, finishes)), self._tally)

    def first(self) -> bytes:
        return b":\n\n"

    def events(self, chunks: list[Chunk]) -> bytes:
        sent = b""
        for chunk in chunks:
            if chunk.finish is not None:
                check(chunk, sent)
            self._tally.add(chunk)
            if text := chunk.text:
                before, after = self._around.get(chunk.index) or self._make_around(chunk.index)
                sent += before + events.encode(text) + after
            if chunk.finish is not None:
                sent += self._frame.end(_choice(chunk.index, "", chunk.finish.value), self._tally)
        return sent

    def _make_around(self, index: int) -> tuple[bytes, bytes]:
        around = self._frame.around(b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}')
        self._around[index] = around
        return around

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)
