"""The bodies that clients send, as types: what a field may be is written here and nowhere else.

`null` is an absent field. Fields that nobody knows are ignored; what is known and not served is in `UNSUPPORTED`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]

MAX_MESSAGES = 2048
MAX_PROMPTS = 64
MAX_STOPS = 64
MAX_BIASES = 1024

# Known parameters that this server does not offer, with the values that ask for nothing. Anything else is refused by
# name, so that nobody believes a parameter was honoured.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "adaptive_decay": (),
    "adaptive_target": (),
    "audio": (),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "id_slot": (-1,),
    "json_schema": (),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "return_progress": (False,),
    "return_tokens": (False,),
    "samplers": (),
    "t_max_predict_ms": (0, -1),
    "timings_per_token": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_n_sigma": (-1,),
    "verbose": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
UNSUPPORTED_IN_CHAT: dict[str, tuple[Any, ...]] = {"logprobs": (False,), "top_logprobs": (), "suffix": ("",)}
UNSUPPORTED_IN_COMPLETIONS: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
}


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What all generating endpoints share."""

    model: str | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, float | bool] | list[tuple[int | str, float | bool]] | None = None

    temperature: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    grammar: str | None = None


class Message(msgspec.Struct):
    """One turn; its content is checked by hand, because what is allowed depends on the role."""

    role: str
    content: str | list[dict[str, Any]] | msgspec.UnsetType | None = msgspec.UNSET
    name: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    tool_call_id: str | None = None


class ChatBody(GenerationBody, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[Any]


chat_decoder = msgspec.json.Decoder(ChatBody)
completion_decoder = msgspec.json.Decoder(CompletionBody)
# Only the names in UNSUPPORTED are decoded; the rest of the body is skipped.
unsupported_decoder = msgspec.json.Decoder(
    msgspec.defstruct(
        "UnsupportedFields",
        [(name, Any, None) for name in {**UNSUPPORTED, **UNSUPPORTED_IN_CHAT, **UNSUPPORTED_IN_COMPLETIONS}],
    )
)
