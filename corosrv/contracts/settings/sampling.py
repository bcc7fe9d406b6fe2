"""Settings of how answers are drawn whose requests do not say it, and of their grammars. Checked and frozen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import InvalidSchema, SettingsError
from corosrv.contracts.jobs import sampler_names
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import MAX_INT32, PREFIX, Check, at_least, between, none_or, or_else, setting
from corosrv.formats.structured import SchemaLimits, grammar_of

_MOST_TEXTS = 64
_MOST_BIASES = 1024
_MOST_CHARACTERS = 100_000  # of one setting, which the environment of a process can hold
_BIAS = re.compile(r"([0-9]{1,9})([+-](?:[0-9]{1,3}(?:\.[0-9]*)?|inf))")


def parse_texts(text: str) -> tuple[str, ...]:
    """Reads a JSON array of texts, none of them empty; "" has none. Raises ValueError."""
    texts = json.loads(text or "[]")
    if (
        not isinstance(texts, list)
        or len(texts) > _MOST_TEXTS
        or not all(isinstance(one, str) and one for one in texts)
    ):
        raise ValueError(f"{text!r} is no array of texts")
    return tuple(texts)


def parse_biases(text: str) -> tuple[tuple[int, float], ...]:
    """Reads token ids, each with what is added to its logit: 15043+1,13-inf. Raises ValueError."""
    matches = [(word, _BIAS.fullmatch(word)) for word in sources.split_words(text)]
    biases = [(int(match[1]), float(match[2])) for _, match in matches if match]
    if len(biases) < len(matches) or len(biases) > _MOST_BIASES:
        raise ValueError(f"{text!r} has what is no bias, or too many")
    if not all(-100 <= bias <= 100 or bias == float("-inf") for _, bias in biases):
        raise ValueError(f"{text!r} has a bias that is out of range")
    return tuple(biases)


def parse_samplers(text: str) -> tuple[str, ...]:
    """Reads samplers' names with semicolons between them. Raises ValueError."""
    return sampler_names([name.strip() for name in text.split(";") if name.strip()])


def parse_object(text: str) -> dict[str, Any]:
    """Reads a JSON object; "" is an empty one. Raises ValueError."""
    value = json.loads(text or "{}")
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is no object")
    return value


def parsed_by(parse: Callable[[str], Any], words: str) -> Check:
    """Allows texts that a parser takes."""

    def is_good(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, RecursionError):
            return False
        return len(text) <= _MOST_CHARACTERS

    return Check(is_good, f"must be {words}")


_TEXTS = parsed_by(parse_texts, f"a JSON array of at most {_MOST_TEXTS} texts")


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Length of an answer, and how it is drawn, where a request does not say it."""

    n_predict: int = setting(
        -1,
        "tokens of an answer if the request sets no limit; -1: until the context is full",
        check=or_else(-1, at_least(1)),
    )
    temp: float | None = setting(
        None, "temperature if the request sets none; unset: the model file's, else 0.8", check=none_or(between(0, 100))
    )
    top_k: int | None = setting(
        None,
        "top_k if the request sets none; 0: all tokens; unset: the model file's, else 40",
        check=none_or(between(-1, MAX_INT32)),
    )
    top_p: float | None = setting(
        None, "top_p if the request sets none; 1: off; unset: the model file's, else 0.95", check=none_or(between(0, 1))
    )
    min_p: float | None = setting(
        None, "min_p if the request sets none; 0: off; unset: the model file's, else 0.05", check=none_or(between(0, 1))
    )
    repeat_penalty: float | None = setting(
        None,
        "repeat_penalty if the request sets none; 1: off; unset: the model file's, else 1",
        check=none_or(between(0.001, 1_000_000)),
    )
    repeat_last_n: int | None = setting(
        None,
        "repeat_last_n if the request sets none, tokens that the penalties look back on; 0: none, -1: the context; "
        "unset: the model file's, else 64",
        check=none_or(between(-1, MAX_INT32)),
    )
    presence_penalty: float = setting(0.0, "presence_penalty if the request sets none; 0: off", check=between(-2, 2))
    frequency_penalty: float = setting(0.0, "frequency_penalty if the request sets none; 0: off", check=between(-2, 2))
    seed: int = setting(-1, "seed if the request sets none; -1: random", check=between(-1, 2**32 - 1))
    logit_bias: str = setting(
        "",
        "logit_bias if the request sets none: token ids, each with what is added to its logit, as 15043+1,13-inf",
        check=parsed_by(
            parse_biases, f"at most {_MOST_BIASES} token ids, each with a bias from -100 to +100, or -inf, behind it"
        ),
    )
    ignore_eos: bool = setting(False, "ignore_eos if the request does not say it; 1: the end token is never drawn")
    stop: str = setting("", "stop if the request sets none: JSON array of texts that end an answer", check=_TEXTS)
    keep: int = setting(
        0, "n_keep if the request sets none, with context_shift; -1: the prompt", check=between(-1, MAX_INT32)
    )
    cache_prompt: bool = setting(
        True, "cache_prompt if the request does not say it; 0: nothing that was computed before is used"
    )
    grammar: str = setting(
        "",
        "grammar (GBNF) of answers whose requests ask for no form and bring no tools; empty: any text",
        check=Check(lambda text: len(text) <= _MOST_CHARACTERS, f"must have at most {_MOST_CHARACTERS} characters"),
    )
    json_schema: str = setting(
        "",
        "the same as JSON schema: answers are JSON that is valid for it",
        check=parsed_by(parse_object, f"a JSON object of at most {_MOST_CHARACTERS} characters"),
    )
    embd_normalize: int = setting(
        2,
        "embd_normalize if the request sets none: 2: vectors have length 1, -1: as they are, 0: their largest number "
        "is 32760, others: the p-norm",
        check=between(-1, 100),
    )


@dataclass(frozen=True, kw_only=True)
class GrammarSettings(SamplingSettings):
    """Limits of grammars, those that requests bring and that of answers whose requests ask for no form."""

    grammar_bytes: int = setting(65_536, "most bytes of a grammar", check=between(1, MAX_INT32))
    grammar_depth: int = setting(128, "deepest nesting of brackets in a grammar", check=between(1, 1000))
    grammar_rules: int = setting(2000, "most rules of a grammar", check=between(1, MAX_INT32))
    grammar_repetitions: int = setting(2000, "most repetitions of one item in a grammar", check=between(1, MAX_INT32))
    grammar_elements: int = setting(
        65_536,
        "most elements of a grammar, repetitions written out",
        check=between(1, MAX_INT32),
    )
    grammar_token_ms: float = setting(
        20.0,
        "milliseconds that a grammar may take for one token, roughly, before its request is ended",
        check=between(1, 60_000),
    )

    @property
    def answer_grammar(self) -> str:
        """Returns the grammar of answers whose requests ask for no form; empty: any text. Raises SettingsError."""
        if not self.json_schema:
            return self.grammar
        limits = SchemaLimits(
            grammar_bytes=self.grammar_bytes, rules=self.grammar_rules, repetitions=self.grammar_repetitions
        )
        try:
            return grammar_of(parse_object(self.json_schema), f"{PREFIX}JSON_SCHEMA", limits)
        except InvalidSchema as error:
            raise SettingsError(str(error)) from None


_FRACTION, _POSITIVE = none_or(between(0, 1)), none_or(between(0, 1_000_000))


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """Values of the samplers that few use, where a request does not say them."""

    samplers: str = setting(
        "",
        "samplers if the request sets none: names in their order, with semicolons between them, as top_k;temperature; "
        "empty: all",
        check=parsed_by(
            parse_samplers, "names of samplers with semicolons between them, as penalties;top_k;temperature"
        ),
    )
    typical_p: float | None = setting(None, "typical_p if the request sets none; 1: off; unset: 1", check=_FRACTION)
    top_n_sigma: float | None = setting(
        None, "top_n_sigma if the request sets none; -1: off; unset: -1", check=none_or(between(-1, 1_000_000))
    )
    xtc_probability: float | None = setting(
        None, "xtc_probability if the request sets none; 0: off; unset: 0", check=_FRACTION
    )
    xtc_threshold: float | None = setting(None, "xtc_threshold if the request sets none; unset: 0.1", check=_FRACTION)
    dynatemp_range: float | None = setting(
        None, "dynatemp_range if the request sets none; 0: off; unset: 0", check=_POSITIVE
    )
    dynatemp_exponent: float | None = setting(
        None, "dynatemp_exponent if the request sets none; unset: 1", check=_POSITIVE
    )
    dry_multiplier: float | None = setting(
        None, "dry_multiplier if the request sets none; 0: off; unset: 0", check=_POSITIVE
    )
    dry_base: float | None = setting(None, "dry_base if the request sets none; unset: 1.75", check=_POSITIVE)
    dry_allowed_length: int | None = setting(
        None, "dry_allowed_length if the request sets none; unset: 2", check=none_or(between(0, MAX_INT32))
    )
    dry_penalty_last_n: int | None = setting(
        None,
        "dry_penalty_last_n if the request sets none; 0: none, -1: the context; unset: 64",
        check=none_or(between(-1, MAX_INT32)),
    )
    dry_sequence_breakers: str = setting(
        "",
        "dry_sequence_breakers if the request sets none: JSON array of texts; empty: those of llama-server",
        check=_TEXTS,
    )
    mirostat: int | None = setting(
        None, "mirostat if the request sets none: 1, 2; 0: off; unset: 0", check=none_or(between(0, 2))
    )
    mirostat_tau: float | None = setting(None, "mirostat_tau if the request sets none; unset: 5", check=_POSITIVE)
    mirostat_eta: float | None = setting(None, "mirostat_eta if the request sets none; unset: 0.1", check=_POSITIVE)
    adaptive_target: float | None = setting(
        None, "adaptive_target if the request sets none; -1: off; unset: -1", check=none_or(between(-1, 1))
    )
    adaptive_decay: float | None = setting(
        None, "adaptive_decay if the request sets none; unset: 0.9", check=none_or(between(0, 0.99))
    )


def parse_sampling(name: str, text: str) -> Any:
    """Parses one of SamplingSettings, as a model's file has it. Raises SettingsError."""
    value = sources.parse(name, sources.kinds(SamplingSettings)[name], text)
    sources.check(SamplingSettings(**{name: value}))
    return value
