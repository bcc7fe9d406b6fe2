"""Parameters by which the tokens of a generation are drawn."""

from __future__ import annotations

from dataclasses import dataclass

# What `Sampling.samplers` may name, in the order that they are applied by default.
SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """Limits the tokens of an answer's thoughts, and says how the engine ends those that have spent them."""

    tokens: int
    closing: str  # the text that ends thoughts
    opening: str = ""  # the text that begins them; empty: the prompt has begun them
    message: str = ""  # the last words of thoughts that are ended
    rest: str = ""  # what is written behind the closing then
    ending: tuple[int, ...] = ()  # the tokens of these three texts, which the engine fills in


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters by which tokens are drawn: bias first, then `samplers` in their order, then temperature 0 or a draw.

    The grammar looks at what top_k leaves. One that allows none of these tokens goes before them, and they are the
    best of what it allows.
    """

    temperature: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 keeps all
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64  # tokens that the penalties look back on; -1 is the context
    seed: int | None = None  # None is random
    ignore_eos: bool = False
    # Token id, or a text for all its tokens; and what is added to the logit: -inf bans it.
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    grammar: str = ""  # GBNF that the text follows; empty: any text
    grammar_param: str = "grammar"  # the client's field that the grammar comes from, for errors
    grammar_triggers: tuple[str, ...] = ()  # the grammar begins with the first of these in the text; (): at once
    top_n_sigma: float = -1.0  # -1 is off
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64  # -1 is the context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  # 0 is off; 1 and 2 take the place of the samplers behind the penalties
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0  # -1 is off
    adaptive_decay: float = 0.9
    min_keep: int = 0
    samplers: tuple[str, ...] = SAMPLERS
    thoughts: ThoughtBudget | None = None  # None: as many as the model likes
    n_probs: int = -1  # how many of the likeliest tokens each TokenInfo lists; -1: chunks carry no TokenInfo
    post_sampling_probs: bool = False  # of the distribution that was drawn from, not of the model's own
