"""The fields that generating endpoints have in common, as a type, and the Job that they make.

A JSON schema becomes a grammar within the limits of the model that answers. Parameters that are known and not offered
are refused by name, so that no client believes that one was honoured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Defaults, Job, ModelCard, Prompt, Sampling, sampler_names
from corosrv.formats.bodies import check_text
from corosrv.formats.structured import Effort, SchemaLimits, grammar_of


def schema_limits(card: ModelCard) -> SchemaLimits:
    """Returns the limits of schemas whose grammars this model's engine is to compile."""
    return SchemaLimits(
        grammar_bytes=card.grammar_bytes, rules=card.grammar_rules, repetitions=card.grammar_repetitions
    )


def effort(limits: SchemaLimits) -> Effort:
    """Returns the effort for all schemas of one request, which lets other greenlets run meanwhile."""
    return Effort(limits, Turns().give_way)


# Each with the values that ask for nothing.
Neutral = Mapping[str, tuple[Any, ...]]

EVERYWHERE: Neutral = {
    "n_indent": (0,),
}
# Where answers have no id by which others find them.
NO_FORKS: Neutral = {
    "fork": (),
    "forkable": (False,),
}

Body = TypeVar("Body", bound=msgspec.Struct)


def decoder(body: type[Body], neutral: Neutral) -> msgspec.json.Decoder[Body]:
    """Makes the decoder of a body whose fields also are those of `neutral`.

    It raises NotSupported for the first of them that asks for something, when the rest of the body is valid.
    """
    field_names = {field.name for field in msgspec.structs.fields(body)}
    values_of = attrgetter(*neutral)
    left_out = values_of(SimpleNamespace(**dict.fromkeys(neutral)))

    def check(decoded: msgspec.Struct) -> None:
        if values_of(decoded) != left_out:  # as in hardly any body
            _refuse(decoded, neutral)

    decoded = msgspec.defstruct(
        body.__name__,
        [(name, Any, None) for name in neutral if name not in field_names],
        bases=(body,),
        namespace={"__post_init__": check},
        kw_only=True,
    )
    return msgspec.json.Decoder(cast(type[Body], decoded))


def _refuse(body: msgspec.Struct, neutral: Neutral) -> None:
    for name, values in neutral.items():
        value = getattr(body, name)
        if value is not None and not any(_is_same(value, neutral_value) for neutral_value in values):
            raise NotSupported(f"{name} is not supported by this server yet", name, "unsupported_parameter")


def _is_same(value: Any, neutral_value: Any) -> bool:
    """Compares as JSON does: True == 1 in Python, and not here; 0.0 asks for as little as 0 does."""
    return bool(value == neutral_value) and isinstance(value, bool) == isinstance(neutral_value, bool)


MAX_STOPS = 64
MAX_BIASES = 1024
MAX_BREAKERS = 64
MAX_THOUGHT_MESSAGE = 1024  # characters
MAX_TRIGGERS, MAX_TRIGGER = 64, 256  # texts, and characters of one

ModelName = Annotated[str, Meta(max_length=1024)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Positive = Annotated[float, Meta(ge=0, le=1e6)]
Window = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Priority = Annotated[
    int, Meta(ge=0, le=9, description="1 is first in the queue, 9 last; 0 is 5, or what the header X-Priority says")
]
PingInterval = Annotated[
    int, Meta(ge=-1, le=86_400, description="seconds of silence in the stream before a comment line; -1: never")
]
Biases = dict[str, float | bool] | list[tuple[int | str, float | bool]]


class Lora(msgspec.Struct):
    """One LoRA adapter, by its number, and its scale."""

    id: Annotated[int, Meta(ge=0)]
    scale: float = 1.0


class GenerationFields(msgspec.Struct, kw_only=True):
    """Everything that steers generating, under llama-server's names; `null` is an absent field."""

    model: ModelName | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    logit_bias: Biases | None = None

    temperature: Positive | None = None
    top_k: Window | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=1e6)] | None = None
    xtc_probability: Fraction | None = None
    xtc_threshold: Fraction | None = None
    dynatemp_range: Positive | None = None
    dynatemp_exponent: Positive | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_last_n: Window | None = None
    dry_multiplier: Positive | None = None
    dry_base: Positive | None = None
    dry_allowed_length: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    dry_penalty_last_n: Window | None = None
    dry_sequence_breakers: Annotated[list[str], Meta(max_length=MAX_BREAKERS)] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Positive | None = None
    mirostat_eta: Positive | None = None
    adaptive_target: Annotated[float, Meta(ge=-1, le=1)] | None = None
    adaptive_decay: Annotated[float, Meta(ge=0, le=0.99)] | None = None
    min_keep: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    samplers: Annotated[str, Meta(max_length=64)] | Annotated[list[str], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None

    grammar: str | None = None
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    n_keep: Window | None = None
    n_discard: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    t_max_predict_ms: Annotated[float, Meta(ge=-1, le=1e12)] | None = None
    lora: Annotated[list[Lora], Meta(max_length=64)] | None = None

    priority: Priority | None = None
    stream: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    sse_ping_interval: PingInterval | None = None


class GrammarTrigger(msgspec.Struct):
    """A text that a lazy grammar begins with: that of a token (type 0), or a word (1). Patterns (2, 3) are refused."""

    type: Annotated[int, Meta(ge=0, le=3)]
    value: Annotated[str, Meta(min_length=1, max_length=MAX_TRIGGER)]
    token: int | None = None


class LazyGrammarFields(GenerationFields, kw_only=True):
    """The fields by which a grammar begins late, as llama-server names them."""

    grammar_lazy: bool | None = None
    grammar_triggers: Annotated[list[GrammarTrigger], Meta(max_length=MAX_TRIGGERS)] | None = None
    preserved_tokens: (
        Annotated[list[Annotated[str, Meta(max_length=MAX_TRIGGER)]], Meta(max_length=MAX_TRIGGERS)] | None
    ) = None


_ThoughtTokens = Annotated[int, Meta(ge=-1)]


class ThoughtFields(LazyGrammarFields, kw_only=True):
    """Tokens that thoughts may have, as llama-server and vLLM name them; -1: as many as the server allows."""

    reasoning_budget: _ThoughtTokens | None = None
    reasoning_budget_tokens: _ThoughtTokens | None = None
    thinking_budget_tokens: _ThoughtTokens | None = None
    thinking_token_budget: _ThoughtTokens | None = None
    reasoning_budget_message: Annotated[str, Meta(max_length=MAX_THOUGHT_MESSAGE)] | None = None


# Fields that mean the same in GenerationFields and in Sampling.
_SAME = (
    "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range",
    "dynatemp_exponent", "repeat_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n", "dry_multiplier",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau", "mirostat_eta",
    "adaptive_target", "adaptive_decay", "min_keep", "ignore_eos",
)  # fmt: skip
_same_values = attrgetter(*_SAME)
_NO_VALUES = (None,) * len(_SAME)


def job(
    fields: GenerationFields,
    prompts: tuple[Prompt, ...],
    defaults: Defaults,
    *,
    n: int = 1,
    least_tokens: int = 1,
    n_probs: int = -1,
    post_sampling_probs: bool = False,
    scores_prompt: bool = False,
) -> Job:
    """Makes the job that the fields ask for. Raises Refused, which names the parameter.

    `least_tokens`: how few tokens an answer may be limited to: 0 where reading the prompt alone makes sense. `n_probs`
    and `post_sampling_probs`: see Sampling; events with each token's timings need the tokens in any case.
    """
    stream = bool(fields.stream)
    if stream and fields.timings_per_token:
        n_probs = max(n_probs, 0)
    return Job(
        prompts=prompts,
        n=n,
        max_tokens=_max_tokens(fields, least_tokens, defaults.max_tokens),
        sampling=_sampling(fields, defaults, n_probs, post_sampling_probs),
        stop=defaults.stop if fields.stop is None else stops(fields.stop, "stop") or defaults.stop,
        share_prefix=defaults.share_prefix if fields.cache_prompt is None else fields.cache_prompt,
        model=fields.model,
        scores_prompt=scores_prompt,
        tells_progress=stream and bool(fields.return_progress),
        n_keep=defaults.n_keep if fields.n_keep is None else fields.n_keep,
        n_discard=fields.n_discard or 0,
        max_ms=max(fields.t_max_predict_ms or 0.0, 0.0),
        slot=-1 if fields.id_slot is None else fields.id_slot,
        lora=None if fields.lora is None else tuple((adapter.id, adapter.scale) for adapter in fields.lora),
    )


def with_schema(job: Job, schema: dict[str, Any] | bool | None, card: ModelCard, param: str = "json_schema") -> Job:
    """Makes the whole text of a job JSON that is valid for `schema`, if there is one; `param`: where it stood.

    Gives way to others where the schema is large. Raises Refused.
    """
    if schema is None:
        return job
    if job.sampling.has_own_grammar:
        raise Refused(f"grammar and {param} contradict each other: send one of them", param)
    limits = schema_limits(card)
    grammar = grammar_of(schema, param, limits, effort(limits))
    return replace(job, sampling=replace(job.sampling, grammar=grammar, grammar_param=param))


def _max_tokens(fields: GenerationFields, least: int, default: int | None) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = getattr(fields, name)
        if value is None:
            continue
        if value != -1 and value < least:
            raise Refused(f"{name} must be at least {least}, or -1 for as many as fit, not {value}", name)
        return None if value == -1 else value
    return default


def _sampling(fields: GenerationFields, defaults: Defaults, n_probs: int, post_sampling_probs: bool) -> Sampling:
    values = _same_values(fields)
    members: dict[str, Any] = {}
    if values != _NO_VALUES:
        members |= {name: value for name, value in zip(_SAME, values, strict=True) if value is not None}
    if fields.top_k is not None:
        members["top_k"] = max(fields.top_k, 0)  # -1 keeps all, as elsewhere
    if fields.dry_sequence_breakers is not None:
        breakers = fields.dry_sequence_breakers
        members["dry_sequence_breakers"] = tuple(check_text(breaker, "dry_sequence_breakers") for breaker in breakers)
    if fields.samplers is not None:
        members["samplers"] = _samplers(fields.samplers)
    if fields.logit_bias is not None:
        members["logit_bias"] = tuple(_biases(fields.logit_bias))
    if fields.grammar:
        members |= {"grammar": check_text(fields.grammar, "grammar"), "grammar_param": "grammar"}
    kind = _shared_sampling if members.keys() <= _NUMBERS else Sampling
    return kind(
        temperature=defaults.temperature if fields.temperature is None else fields.temperature,
        seed=_seed(fields.seed, defaults.seed),
        n_probs=n_probs,
        post_sampling_probs=post_sampling_probs,
        **{**defaults.more, **members},
    )


# Nearly all requests ask for one of a few: each is made once, and open streams share it. Those with a client's texts in
# them are not kept.
_shared_sampling = lru_cache(maxsize=256)(Sampling)
_NUMBERS = frozenset((*_SAME, "top_k"))


def _samplers(names: str | list[str]) -> tuple[str, ...]:
    """Reads names, or a string of letters. Raises Refused for unknown ones."""
    try:
        return sampler_names(names)
    except ValueError as error:
        raise Refused(f"samplers: {error}", "samplers") from None


def _seed(seed: int | None, default: int | None) -> int | None:
    if seed is None:
        return default
    return None if seed == -1 else seed % 2**32


def stops(stop: str | list[str] | None, param: str) -> tuple[str, ...]:
    """Checks the stop strings. Raises Refused."""
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > MAX_STOPS:
        raise Refused(f"{param}: at most {MAX_STOPS} strings, not {len(strings)}", param)
    if "" in strings:
        raise Refused(f"{param}: a stop string must not be empty", param)
    return tuple(check_text(string, param) for string in strings)


def _biases(biases: Biases) -> Iterable[tuple[int | str, float]]:
    if len(biases) > MAX_BIASES:
        raise Refused(f"logit_bias: at most {MAX_BIASES} tokens, not {len(biases)}", "logit_bias")
    if isinstance(biases, dict):
        return [(_token_id(key), _bias(bias)) for key, bias in biases.items()]
    return [(key if isinstance(key, int) else check_text(key, "logit_bias"), _bias(bias)) for key, bias in biases]


def _token_id(key: str) -> int:
    if not re.fullmatch(r"\d{1,9}", key, re.ASCII):
        raise Refused(f"logit_bias: {key[:40]!r} is no token id", "logit_bias")
    return int(key)


def _bias(bias: float | bool) -> float:
    if bias is False:
        return -math.inf
    if bias is True or not -100 <= bias <= 100:
        raise Refused("logit_bias: a bias must be from -100 to 100, or false to ban the token", "logit_bias")
    return float(bias)


_BUDGETS = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")
_budgets_of = attrgetter(*_BUDGETS)
_NO_BUDGETS = (None,) * len(_BUDGETS)


def thought_tokens(fields: ThoughtFields) -> int | None:
    """Returns how many tokens thoughts may have; None where the request leaves it to the server.

    Raises Refused where two names say different things.
    """
    values = _budgets_of(fields)
    if values == _NO_BUDGETS:
        return None
    budgets = {name: tokens for name, tokens in zip(_BUDGETS, values, strict=True) if tokens is not None}
    if len(set(budgets.values())) > 1:
        raise Refused(f"{' and '.join(budgets)} contradict each other: send one of them", next(iter(budgets)))
    tokens: int = next(iter(budgets.values()))
    return tokens if tokens >= 0 else None


def thought_message(fields: ThoughtFields) -> str | None:
    """Returns the last words of thoughts that have spent their budget; None where the request has none."""
    message = fields.reasoning_budget_message
    return None if message is None else check_text(message, "reasoning_budget_message")


def budget_name(fields: ThoughtFields) -> str:
    """Returns the name under which a request gives its budget."""
    return next(name for name in _BUDGETS if getattr(fields, name) is not None)
