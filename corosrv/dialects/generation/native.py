"""One task's answer in llama-server's own form, which other dialects show beside theirs when they are asked to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.contracts.jobs import (
    Chunk,
    Finish,
    Job,
    ModelCard,
    MultimodalText,
    Pieces,
    Prompt,
    TokenInfo,
    Tokens,
    Vocabulary,
)
from corosrv.dialects.generation import likelihood, settings
from corosrv.dialects.generation.answer_types import NativeCompletion, StopType, TokenLikelihood
from corosrv.dialects.generation.indent import Indent
from corosrv.dialects.generation.prompts import MEDIA_MARKER
from corosrv.dialects.generation.tally import Tally


@dataclass(frozen=True, slots=True)
class NativeForm:
    """Everything that the native answers of one job have in common. `prompts` are as the model read them."""

    job: Job
    card: ModelCard
    settings: dict[str, Any]
    prompts: tuple[str, ...]
    stream: bool = False  # the text is sent by the end, and is not in it once more
    return_tokens: bool = False
    n_indent: int = 0  # lines that are indented less end the text

    @classmethod
    def for_job(
        cls, job: Job, card: ModelCard, vocabulary: Vocabulary, stream: bool, return_tokens: bool, timings: bool
    ) -> NativeForm:
        """Makes the form for a job whose prompts are checked. May wait as `tokenize` does."""
        return cls(
            job,
            card,
            settings.of_job(job, stream, vocabulary) | {"timings_per_token": timings},
            tuple(_spell(prompt, vocabulary) for prompt in job.prompts),
            stream,
            return_tokens,
        )

    @property
    def has_probs(self) -> bool:
        return self.job.sampling.n_probs > 0


class NativeTask:
    """One task's answer so far."""

    def __init__(self, index: int, form: NativeForm) -> None:
        self.tally = Tally()
        self._index = index
        self._form = form
        self._content: list[str] = []
        self._tokens: list[int] = []
        self._probs: list[TokenInfo] = []
        self._has_new_line = False
        self._indent = Indent(form.n_indent)

    def clip(self, chunk: Chunk) -> Chunk:
        """Returns the next chunk without what comes behind the end of the text."""
        text = self._indent.take(chunk.text) if self._form.n_indent else chunk.text
        return msgspec.structs.replace(chunk, text=text, tokens=()) if self._indent.is_over else chunk

    def add(self, chunk: Chunk) -> None:
        self.tally.add(chunk)
        self._has_new_line = self._has_new_line or "\n" in chunk.text
        if self._form.stream:
            return
        self._content.append(chunk.text)
        if self._form.return_tokens:
            self._tokens += [token.id for token in chunk.tokens]
        if self._form.has_probs:
            self._probs += chunk.tokens

    def partial(self, chunk: Chunk, **extras: Any) -> NativeCompletion:
        """Makes the event for one chunk of a stream, which was added before and tells its tokens."""
        return NativeCompletion(
            index=self._index,
            content=chunk.text,
            tokens=[token.id for token in chunk.tokens],
            id_slot=chunk.slot,
            stop=False,
            tokens_predicted=self.tally.completion_tokens,
            tokens_evaluated=chunk.prompt_tokens,
            completion_probabilities=self._probabilities(chunk.tokens) if self._form.has_probs else msgspec.UNSET,
            **extras,
        )

    def final(self, chunk: Chunk) -> NativeCompletion:
        """Makes the answer, with the terminal chunk."""
        n_predicted, n_prompt = self.tally.completion_tokens, self.tally.prompt_tokens
        return NativeCompletion(
            index=self._index,
            content="".join(self._content),
            tokens=self._tokens,
            id_slot=chunk.slot,
            stop=True,
            model=self._form.card.id,
            tokens_predicted=n_predicted,
            tokens_evaluated=n_prompt,
            generation_settings=self._form.settings,
            prompt=self._form.prompts[self._index // self._form.job.n],
            has_new_line=self._has_new_line,
            truncated=self._is_truncated(chunk, n_prompt + n_predicted),
            stop_type="limit" if self._indent.is_over else _stop_type(chunk),
            stopping_word=chunk.stopping_word,
            # The last token was never read by the model.
            tokens_cached=n_prompt + max(n_predicted - 1, 0) - chunk.dropped_tokens,
            timings=self.tally.timings(),
            completion_probabilities=self._probabilities(self._probs),
        )

    def _probabilities(self, tokens: Sequence[TokenInfo]) -> list[TokenLikelihood] | msgspec.UnsetType:
        if not tokens:
            return msgspec.UNSET
        return likelihood.describe_all(tokens, self._form.job.sampling.post_sampling_probs)

    def _is_truncated(self, chunk: Chunk, n_tokens: int) -> bool:
        """Returns whether the context was too small for all that there would have been."""
        context = self._form.card.meta.get("n_ctx", 0)
        return chunk.dropped_tokens > 0 or (chunk.finish is Finish.LENGTH and 0 < context <= n_tokens)


def _spell(prompt: Prompt, vocabulary: Vocabulary) -> str:
    if isinstance(prompt, MultimodalText):
        return "".join(part if isinstance(part, str) else MEDIA_MARKER for part in prompt.parts)
    if isinstance(prompt, Pieces):  # of which rows print nothing
        ids = [token for piece in prompt.pieces if isinstance(piece, Tokens) for token in piece.ids]
        return vocabulary.spell(ids).decode("utf-8", "replace")
    return vocabulary.spell(vocabulary.encode(prompt)).decode("utf-8", "replace")


def _stop_type(chunk: Chunk) -> StopType:
    if chunk.finish is Finish.CANCELLED:
        return "abort"
    if chunk.finish is Finish.LENGTH:
        return "limit"
    return "word" if chunk.stopping_word else "eos"
