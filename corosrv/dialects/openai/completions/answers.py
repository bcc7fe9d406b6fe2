"""Text completions, the way out: chunks to answers, with log probabilities in the shape that is older than chats."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from corosrv.base.errors import CorosrvError
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Chunk, Job, ModelCard, TokenInfo
from corosrv.dialects.generation import native
from corosrv.dialects.generation.answer_types import Tally
from corosrv.dialects.generation.call import AnswerOptions, Echo, split_tokens
from corosrv.dialects.openai import events
from corosrv.dialects.openai.answer_types import Finish, TextChoice, TextCompletion, TextLogprobs
from corosrv.dialects.openai.events import LlamaExtras


class Logprobs:
    """Shows the tokens of one choice, in one piece or in several; offsets count characters of the choice's text."""

    def __init__(self, offset: int = 0) -> None:
        """`offset`: where the first token's text begins; below 0 for tokens that stand before the text."""
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, tokens: Sequence[TokenInfo]) -> TextLogprobs:
        return TextLogprobs(
            [_spell(token.piece) for token in tokens],
            [token.logprob for token in tokens],
            [_top(token) for token in tokens],
            [self._advance(token) for token in tokens],
        )

    def _advance(self, token: TokenInfo) -> int:
        """Returns where the token begins, and moves behind it."""
        begin = max(self._offset, 0)
        self._offset += len(self._decoder.decode(token.piece))
        return begin


def _top(token: TokenInfo) -> dict[str, float] | None:
    """Returns the likeliest tokens, and the one that came if it is none of them."""
    if token.logprob is None:
        return None
    return {_spell(other.piece): other.logprob for other in token.top} | {_spell(token.piece): token.logprob}


def _spell(piece: bytes) -> str:
    """Spells a piece as OpenAI does, also one that is no whole character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


_NO_ECHO = Echo("")


class _WholeText:
    """One task's answer that is not streamed."""

    __slots__ = ("finish", "prompt_info", "text", "tokens")

    def __init__(self) -> None:
        self.text = ""
        self.finish: Finish | None = None
        self.tokens: list[TokenInfo] = []
        self.prompt_info: list[TokenInfo] = []

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.prompt_info += chunk.prompt_info
        if chunk.finish is not None:
            self.finish = events.finish_word(chunk.finish.value)

    @property
    def mean_logprob(self) -> float:
        return sum(token.logprob or 0.0 for token in self.tokens) / max(len(self.tokens), 1)


class TextAnswer:
    """Puts one answer together from the chunks of its job."""

    __slots__ = (
        "_extras", "_frame", "_is_post_sampling", "_logprobs", "_n", "_n_tasks", "_options", "_tally", "_text_frames"
    )  # fmt: skip

    def __init__(self, job: Job, card: ModelCard, options: AnswerOptions) -> None:
        # Not the job itself: its prompts would be kept until the stream ends.
        self._n = job.n
        self._n_tasks = job.n_tasks
        self._is_post_sampling = job.sampling.post_sampling_probs
        self._options = options
        self._tally = Tally(job.n)
        self._frame = events.Frame(TextCompletion, "cmpl-", "text_completion", card, job.n_tasks, options)
        self._extras = LlamaExtras.for_answer(job.n_tasks, options)
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._text_frames: dict[int, tuple[bytes, bytes]] = {}
        self._logprobs: dict[int, Logprobs] = {}  # of each choice of a stream

    @property
    def id(self) -> str:
        return self._frame.id

    def complete(self, chunks: list[Chunk]) -> TextCompletion:
        tried = [_WholeText() for _ in range(self._n_tasks)]
        for chunk in chunks:
            self._tally.add(chunk)
            tried[chunk.index].add(chunk)
        choices = [self._choice(index, choice) for index, choice in Turns().among(enumerate(self._best(tried)))]
        answer: TextCompletion = self._frame.complete(choices, self._tally, **self._extras.of_answer(chunks))
        return answer

    def _best(self, tried: Sequence[_WholeText]) -> list[_WholeText]:
        n, n_tried = self._options.n, self._n
        if n == n_tried:
            return list(tried)
        groups = (tried[first : first + n_tried] for first in range(0, len(tried), n_tried))
        return [best for group in groups for best in sorted(group, key=lambda text: -text.mean_logprob)[:n]]

    def _choice(self, index: int, choice: _WholeText) -> TextChoice:
        echo = self._echo(index, self._options.n)
        logprobs: TextLogprobs | None = None
        if self._options.logprobs:
            logprobs = Logprobs(echo.offset).show([*choice.prompt_info, *choice.tokens])
        elif self._options.probs:
            logprobs = self._probs(choice.tokens)
        return TextChoice(index, echo.text + choice.text, logprobs, choice.finish)

    def _echo(self, index: int, n: int) -> Echo:
        return _NO_ECHO if self._options.echoes is None else self._options.echoes[index // n]

    def first(self) -> bytes:
        if self._options.echoes is None or self._options.logprobs:
            return b":\n\n"  # an echo with logprobs waits for these
        echoes = ((index, self._echo(index, self._n).text) for index in range(self._n_tasks))
        return b"".join(self._piece(index, echo) for index, echo in echoes if echo) or b":\n\n"

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        sent = b""
        for chunk in split_tokens(chunks) if self._extras.is_wanted or self._options.probs else chunks:
            self._tally.add(chunk)
            if self._extras.is_wanted or self._options.probs:
                sent += self._events_with_extras(chunk)
            elif self._options.logprobs:
                sent += self._piece_with_logprobs(chunk)
            elif text := chunk.text:
                sent += self._piece(chunk.index, text)
            if chunk.finish is not None:
                end = TextChoice(chunk.index, "", None, events.finish_word(chunk.finish.value))
                sent += self._frame.end(end, self._tally, **self._extras.at_end(chunk))
        return sent

    def _events_with_extras(self, chunk: Chunk) -> bytes:
        sent = b""
        for progress in self._extras.progress(chunk):
            sent += self._frame.event(TextChoice(chunk.index, "", None, None), **progress)
        extras = self._extras.add(chunk)
        if self._options.logprobs:
            return sent + self._piece_with_logprobs(chunk, **extras)
        probs = self._probs(chunk.tokens) if self._options.probs and chunk.tokens else None
        if not chunk.text and not extras and probs is None:
            return sent
        return sent + self._frame.event(TextChoice(chunk.index, chunk.text, probs, None), **extras)

    def _probs(self, tokens: Iterable[TokenInfo]) -> TextLogprobs:
        return TextLogprobs(content=native.describe_all(tokens, self._is_post_sampling))

    def _piece(self, index: int, text: str) -> bytes:
        prefix, suffix = self._text_frames.get(index) or self._make_text_frame(index)
        return prefix + events.encode(text) + suffix

    def _make_text_frame(self, index: int) -> tuple[bytes, bytes]:
        frame = self._frame.text_frame(b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}')
        self._text_frames[index] = frame
        return frame

    def _piece_with_logprobs(self, chunk: Chunk, **extras: Any) -> bytes:
        text, index = chunk.text, chunk.index
        tokens = chunk.prompt_info + chunk.tokens
        if not text and not tokens:
            return b""
        if index not in self._logprobs:
            echo = self._echo(index, self._n)
            text = echo.text + text
            self._logprobs[index] = Logprobs(echo.offset)
        return self._frame.event(TextChoice(index, text, self._logprobs[index].show(tokens), None), **extras)

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)
