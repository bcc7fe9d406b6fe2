"""One task's answer in llama-server's own form, which other dialects show beside theirs when they are asked to.

The settings that a job is generated with stand there under llama-server's names. `describe` and its kin show tokens and
how likely they were, for chats too. `with_triggers` reads what llama-server's clients say of grammars that begin late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import msgspec

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import (
    Candidate,
    Chunk,
    Finish,
    Job,
    ModelCard,
    MultimodalText,
    Pieces,
    Prompt,
    Sampling,
    TokenInfo,
    Tokens,
    Vocabulary,
    token_biases,
)
from corosrv.dialects.generation.fields import LazyGrammarFields
from corosrv.dialects.generation.job_usage import PromptProgress, Tally, Timings
from corosrv.formats.bodies import check_text
from corosrv.images.intake import MEDIA_MARKER

StopType = Literal["none", "eos", "limit", "word", "abort"]


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


_RANDOM_SEED = 2**32 - 1
# Members with the same name on both sides; the texts of a request are not among them.
_NUMBERS = (
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau",
    "mirostat_eta", "adaptive_target", "adaptive_decay", "ignore_eos", "min_keep", "post_sampling_probs",
)  # fmt: skip


# What llama-server tells of more than there is here: its clients may count on the members.
_NEVER: dict[str, Any] = {
    "backend_sampling": False,
    "chat_format": "Content-only",
    "generation_prompt": "",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "speculative.types": "none",
}


def settings_of_sampling(sampling: Sampling, max_tokens: int | None) -> dict[str, Any]:
    """Returns the numbers of a sampling, which tell nothing about the text of a request."""
    n_predict = -1 if max_tokens is None else max_tokens
    return {
        "seed": _RANDOM_SEED if sampling.seed is None else sampling.seed,
        **{name: getattr(sampling, name) for name in _NUMBERS},
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_probs": max(sampling.n_probs, 0),
        "samplers": list(sampling.samplers),
        **_NEVER,
    }


def with_triggers(job: Job, fields: LazyGrammarFields, find_vocabulary: Callable[[], Vocabulary]) -> Job:
    """Has a job's grammar begin with the first of the triggers in its text, where the fields ask for that.

    Raises Refused for what could begin nothing, and for tokens to be preserved whose text answers do not show.
    """
    for number, text in enumerate(fields.preserved_tokens or ()):
        _check_visible(text, f"preserved_tokens[{number}]", find_vocabulary)
    if not fields.grammar_lazy:
        return job
    if not job.sampling.grammar:
        raise Refused("grammar_lazy: there is no grammar or json_schema that could begin late", "grammar_lazy")
    if not fields.grammar_triggers:
        raise Refused("grammar_triggers: no trigger is set for the lazy grammar", "grammar_triggers")
    for number, trigger in enumerate(fields.grammar_triggers):
        place = f"grammar_triggers[{number}]"
        if trigger.type not in _TEXT_TRIGGERS:
            words = "a trigger is a token (0) or a word (1) here, and no pattern"
            raise NotSupported(f"{place}.type: {words}", f"{place}.type", "unsupported_parameter")
        _check_visible(check_text(trigger.value, f"{place}.value"), f"{place}.value", find_vocabulary)
    texts = dict.fromkeys(trigger.value for trigger in fields.grammar_triggers)
    return replace(job, sampling=replace(job.sampling, grammar_triggers=tuple(texts)))


_TEXT_TRIGGERS = (0, 1)


def _check_visible(text: str, param: str, find_vocabulary: Callable[[], Vocabulary]) -> None:
    """Raises Refused for a control token that answers do not show. Any other text is there as it comes."""
    vocabulary = find_vocabulary()
    tokens = vocabulary.tokenize(check_text(text, param), False, True, param)
    if len(tokens) == 1 and vocabulary.is_hidden(tokens[0]):
        raise NotSupported(f"{param}: this model's answers do not show the control token {text!r}", param)


def settings_of_job(job: Job, stream: bool, vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns every setting of a job as llama-server writes it. May wait as `tokenize` does."""
    return settings_without_biases(job, stream) | {"logit_bias": _biases(job.sampling, vocabulary)}


def settings_without_biases(job: Job, stream: bool) -> dict[str, Any]:
    """Returns the settings of a job with no biases among them, for which its model has to be loaded."""
    sampling = job.sampling
    return {
        **settings_of_sampling(sampling, job.max_tokens),
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "stop": list(job.stop),
        "n_keep": job.n_keep,
        "n_discard": job.n_discard,
        "stream": stream,
        "logit_bias": [],
        "grammar": sampling.grammar,
        "grammar_lazy": bool(sampling.grammar_triggers),
        "grammar_triggers": [{"type": 1, "value": text} for text in sampling.grammar_triggers],
        "preserved_tokens": [],
        "cache_prompt": job.share_prefix,
        "id_slot": job.slot,
        "t_max_predict_ms": job.max_ms,
        "lora": [{"id": id, "scale": scale} for id, scale in job.lora or ()],
    }


def _biases(sampling: Sampling, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Lists the biases token by token; a token that is banned has -inf, which JSON writes as null."""
    banned = vocabulary.end_tokens if sampling.ignore_eos else ()
    biases = [{"bias": float("-inf"), "token": token} for token in banned]
    biases += [{"bias": bias, "token": token} for token, bias in token_biases(sampling.logit_bias, vocabulary)]
    return biases


def spell(piece: bytes) -> str:
    """Writes a token's text; what is no whole character is shown as U+FFFD, and `bytes` has it."""
    return piece.decode("utf-8", "replace")


def describe_all(tokens: Iterable[TokenInfo], post_sampling: bool) -> list[TokenLikelihood]:
    """Describes tokens for a member of an answer, as JSON text that only msgspec.json.encode takes.

    Lets other greenlets run in between: an answer of 1,000 tokens may have 100,000 candidates, whose objects would take
    100 bytes each, and their encoding 0.1 s at once.
    """
    texts = [msgspec.json.encode(describe(token, post_sampling)) for token in Turns().among(tokens)]
    return cast(list[TokenLikelihood], msgspec.Raw(b"[" + b",".join(texts) + b"]"))


def describe(token: TokenInfo, post_sampling: bool) -> TokenLikelihood:
    """Describes a token by what the model thought of it, or by what the samplers left of that."""
    return probabilities(token) if post_sampling else logprobs(token)


def logprobs(token: TokenInfo) -> TokenLikelihood:
    """Describes a token with the logarithm of its probability, and the likeliest in its place, best first."""
    tops = [LikelyToken(*_token(other), logprob=other.logprob) for other in token.top]
    return TokenLikelihood(*_token(token), logprob=token.logprob, top_logprobs=tops)


def probabilities(token: TokenInfo) -> TokenLikelihood:
    """Describes a token with its probability, not the logarithm; those that could not have come are left out."""
    likely = ((other, math.exp(other.logprob)) for other in token.top)
    tops = [LikelyToken(*_token(other), prob=prob) for other, prob in likely if prob > 0]
    return TokenLikelihood(*_token(token), prob=math.exp(token.logprob or 0.0), top_probs=tops)


def _token(token: TokenInfo | Candidate) -> tuple[int, str, list[int]]:
    return token.id, spell(token.piece), list(token.piece)


@dataclass(frozen=True, slots=True)
class NativeForm:
    """Everything that the native answers of one job have in common. `prompts` are as the model read them."""

    job: Job
    card: ModelCard
    settings: dict[str, Any]
    prompts: tuple[str, ...]
    stream: bool = False  # the text is sent by the end, and is not in it once more
    return_tokens: bool = False

    @classmethod
    def for_job(
        cls, job: Job, card: ModelCard, vocabulary: Vocabulary, stream: bool, return_tokens: bool, timings: bool
    ) -> NativeForm:
        """Makes the form for a job whose prompts are checked. May wait as `tokenize` does."""
        return cls(
            job,
            card,
            settings_of_job(job, stream, vocabulary) | {"timings_per_token": timings},
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
            stop_type=_stop_type(chunk),
            stopping_word=chunk.stopping_word,
            # The last token was never read by the model.
            tokens_cached=n_prompt + max(n_predicted - 1, 0) - chunk.dropped_tokens,
            timings=self.tally.timings(),
            completion_probabilities=self._probabilities(self._probs),
        )

    def _probabilities(self, tokens: Sequence[TokenInfo]) -> list[TokenLikelihood] | msgspec.UnsetType:
        if not tokens:
            return msgspec.UNSET
        return describe_all(tokens, self._form.job.sampling.post_sampling_probs)

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
