"""Types of which several dialects make their answers, as the API document has them, and a tally of a job's tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from corosrv.contracts.jobs import Chunk

StopType = Literal["none", "eos", "limit", "word", "abort"]


class Timings(msgspec.Struct):
    """llama-server's timings: `cache_n` prompt tokens were known, `prompt_n` computed, `predicted_n` generated.

    `draft_n` guesses of next tokens were computed, and `draft_n_accepted` came true; left out where there were none.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | msgspec.UnsetType = msgspec.UNSET
    draft_n_accepted: int | msgspec.UnsetType = msgspec.UNSET


class PromptProgress(msgspec.Struct):
    """Progress of reading a prompt, for streams with `return_progress`."""

    total: int
    cache: int
    processed: int
    time_ms: int


class LikelyToken(msgspec.Struct):
    """A token that could have come: `logprob`, or `prob` with `post_sampling_probs`."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | msgspec.UnsetType = msgspec.UNSET
    prob: float | msgspec.UnsetType = msgspec.UNSET


class TokenLikelihood(msgspec.Struct):
    """A token that came, and the likeliest in its place: as logarithms, or as `prob` with `post_sampling_probs`."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | msgspec.UnsetType | None = msgspec.UNSET
    top_logprobs: list[LikelyToken] | msgspec.UnsetType = msgspec.UNSET
    prob: float | msgspec.UnsetType = msgspec.UNSET
    top_probs: list[LikelyToken] | msgspec.UnsetType = msgspec.UNSET


class NativeCompletion(msgspec.Struct):
    """A prompt continued. An event of a stream has less of it, until the last, where `stop` is true.

    With `response_fields` only the members that it names are there.
    """

    index: int | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    id_slot: int | msgspec.UnsetType = msgspec.UNSET
    stop: bool | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    tokens_predicted: int | msgspec.UnsetType = msgspec.UNSET
    tokens_evaluated: int | msgspec.UnsetType = msgspec.UNSET
    generation_settings: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    has_new_line: bool | msgspec.UnsetType = msgspec.UNSET
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    stop_type: StopType | msgspec.UnsetType = msgspec.UNSET
    stopping_word: str | msgspec.UnsetType = msgspec.UNSET
    tokens_cached: int | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    completion_probabilities: list[TokenLikelihood] | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class Tally:
    """Counts over the tasks of a job that have ended; prompt tokens count once, however many answers (`n`) each prompt
    gets."""

    n: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    is_predicted: bool = False  # the job says what its answers are expected to be
    prompt_ms: float = 0.0
    decode_ms: float = 0.0
    compute_ms: float = 0.0  # of the machine, for all tasks together

    def add(self, chunk: Chunk) -> None:
        self.completion_tokens += chunk.n_tokens
        if chunk.finish is None:
            return
        self.prompt_ms = max(self.prompt_ms, chunk.prompt_ms)
        self.decode_ms = max(self.decode_ms, chunk.decode_ms)
        self.compute_ms += chunk.compute_ms
        self.drafted_tokens += chunk.drafted_tokens
        self.accepted_tokens += chunk.accepted_tokens
        if chunk.index % self.n == 0:
            self.prompt_tokens += chunk.prompt_tokens
            self.cached_tokens += chunk.cached_tokens
            self.image_tokens += chunk.image_tokens

    def as_of(self, chunk: Chunk) -> Tally:
        """Returns the tally of a single task at the moment when this chunk was made, which tells tokens."""
        return replace(
            self,
            prompt_tokens=chunk.prompt_tokens,
            cached_tokens=chunk.cached_tokens,
            drafted_tokens=chunk.drafted_tokens,
            accepted_tokens=chunk.accepted_tokens,
            prompt_ms=chunk.prompt_ms,
            decode_ms=chunk.decode_ms,
        )

    def timings(self) -> Timings:
        """Returns llama-server's timings; the rates leave out the first token, which comes from the prompt's batch."""
        computed = self.prompt_tokens - self.cached_tokens
        n_after_first = max(self.completion_tokens - 1, 0)
        return Timings(
            cache_n=self.cached_tokens,
            prompt_n=computed,
            prompt_ms=self.prompt_ms,
            prompt_per_token_ms=self.prompt_ms / computed if computed else 0.0,
            prompt_per_second=1000.0 * computed / self.prompt_ms if self.prompt_ms else 0.0,
            predicted_n=self.completion_tokens,
            predicted_ms=self.decode_ms,
            predicted_per_token_ms=self.decode_ms / n_after_first if n_after_first else 0.0,
            predicted_per_second=1000.0 * n_after_first / self.decode_ms if self.decode_ms else 0.0,
            draft_n=self.drafted_tokens or msgspec.UNSET,
            draft_n_accepted=self.accepted_tokens if self.drafted_tokens else msgspec.UNSET,
        )
