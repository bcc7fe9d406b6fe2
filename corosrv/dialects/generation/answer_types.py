"""Types of which several dialects make their answers, as the API document has them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

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
