"""Text completions, the way out: chunks to answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corosrv.errors import CorosrvError
from corosrv.generation import likelihood
from corosrv.generation.split_tokens import split_tokens
from corosrv.generation.tally import Tally
from corosrv.jobs import Chunk, Job, ModelCard, TokenInfo
from corosrv.openai import events
from corosrv.openai.beside import Beside, Wanted
from corosrv.openai.completions.logprobs import Logprobs
from corosrv.turns import Turns


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that stands in front of its answers."""

    text: str
    offset: int = 0  # where its first token begins in the text: before it, when the model was given one in front


@dataclass(frozen=True, slots=True)
class Shown:
    """What an answer shows beside the generated text."""

    n: int = 1  # choices of each prompt: the best of those that the job tries
    usage: bool = False  # at the end of a stream
    echo: tuple[Echo, ...] | None = None
    logprobs: bool = False
    probs: bool = False  # the same, in llama-server's form
    beside: Wanted = field(default_factory=Wanted)


_NO_ECHO = Echo("")


class _Choice:
    """One task's answer, whole."""

    __slots__ = ("finish", "prompt_info", "text", "tokens")

    def __init__(self) -> None:
        self.text = ""
        self.finish: str | None = None
        self.tokens: list[TokenInfo] = []
        self.prompt_info: list[TokenInfo] = []

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.prompt_info += chunk.prompt_info
        if chunk.finish is not None:
            self.finish = chunk.finish.value

    @property
    def mean_logprob(self) -> float:
        return sum(token.logprob or 0.0 for token in self.tokens) / max(len(self.tokens), 1)


class TextAnswer:
    """One answer being put together."""

    def __init__(self, job: Job, card: ModelCard, shown: Shown) -> None:
        self._job = job
        self._shown = shown
        self._tally = Tally(job.n)
        self._frame = events.Frame("cmpl-", "text_completion", card, job.n_tasks, shown.usage)
        self._beside = Beside(job, shown.beside)
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._logprobs: dict[int, Logprobs] = {}  # of each choice of a stream

    def whole(self, chunks: list[Chunk]) -> dict[str, Any]:
        tried = [_Choice() for _ in range(self._job.n_tasks)]
        for chunk in chunks:
            self._tally.add(chunk)
            tried[chunk.index].add(chunk)
        choices = [self._whole_choice(index, choice) for index, choice in Turns().among(enumerate(self._best(tried)))]
        return self._frame.whole(choices, self._tally) | self._beside.of_whole(chunks)

    def _best(self, tried: Sequence[_Choice]) -> list[_Choice]:
        n, n_tried = self._shown.n, self._job.n
        if n == n_tried:
            return list(tried)
        groups = (tried[first : first + n_tried] for first in range(0, len(tried), n_tried))
        return [best for group in groups for best in sorted(group, key=lambda one: -one.mean_logprob)[:n]]

    def _whole_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        echo = self._echo(index, self._shown.n)
        shown = None
        if self._shown.logprobs:
            shown = Logprobs(echo.offset).show([*choice.prompt_info, *choice.tokens])
        elif self._shown.probs:
            shown = self._probs(choice.tokens)
        return _choice(index, echo.text + choice.text, shown, choice.finish)

    def _echo(self, index: int, n: int) -> Echo:
        return _NO_ECHO if self._shown.echo is None else self._shown.echo[index // n]

    def first(self) -> bytes:
        if self._shown.echo is None or self._shown.logprobs:
            return b":\n\n"  # an echo with logprobs waits for these
        echoes = ((index, self._echo(index, self._job.n).text) for index in range(self._job.n_tasks))
        return b"".join(self._piece(index, echo) for index, echo in echoes if echo) or b":\n\n"

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        sent = b""
        for chunk in split_tokens(chunks) if self._beside.is_wanted or self._shown.probs else chunks:
            self._tally.add(chunk)
            if self._beside.is_wanted or self._shown.probs:
                sent += self._told(chunk)
            elif self._shown.logprobs:
                sent += self._piece_with_logprobs(chunk)
            elif text := chunk.text:
                sent += self._piece(chunk.index, text)
            if chunk.finish is not None:
                end = _choice(chunk.index, "", None, chunk.finish.value)
                sent += self._frame.end(end, self._tally, **self._beside.at_end(chunk))
        return sent

    def _told(self, chunk: Chunk) -> bytes:
        """The events of one chunk, with what is told beside them."""
        sent = b""
        for progress in self._beside.progress(chunk):
            sent += self._frame.event(_choice(chunk.index, "", None, None), **progress)
        beside = self._beside.with_text(chunk)
        if self._shown.logprobs:
            return sent + self._piece_with_logprobs(chunk, **beside)
        probs = self._probs(chunk.tokens) if self._shown.probs and chunk.tokens else None
        if not chunk.text and not beside and probs is None:
            return sent
        return sent + self._frame.event(_choice(chunk.index, chunk.text, probs, None), **beside)

    def _probs(self, tokens: Iterable[TokenInfo]) -> dict[str, Any]:
        return {"content": [likelihood.of(token, self._job.sampling.post_sampling_probs) for token in tokens]}

    def _piece(self, index: int, text: str) -> bytes:
        before, after = self._around.get(index) or self._make_around(index)
        return before + events.encode(text) + after

    def _make_around(self, index: int) -> tuple[bytes, bytes]:
        around = self._frame.around(b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}')
        self._around[index] = around
        return around

    def _piece_with_logprobs(self, chunk: Chunk, **beside: Any) -> bytes:
        text, index = chunk.text, chunk.index
        tokens = chunk.prompt_info + chunk.tokens
        if not text and not tokens:
            return b""
        if index not in self._logprobs:
            echo = self._echo(index, self._job.n)
            text = echo.text + text
            self._logprobs[index] = Logprobs(echo.offset)
        return self._frame.event(_choice(index, text, self._logprobs[index].show(tokens), None), **beside)

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
