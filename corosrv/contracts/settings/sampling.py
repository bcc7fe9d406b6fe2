"""Settings of how answers are drawn whose requests do not say it. Checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import MAX_INT32, at_least, between, none_or, or_else, setting


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


def parse_sampling(name: str, text: str) -> Any:
    """Parses one of SamplingSettings, as a model's file has it. Raises SettingsError."""
    value = sources.parse(name, sources.kinds(SamplingSettings)[name], text)
    sources.check(SamplingSettings(**{name: value}))
    return value
