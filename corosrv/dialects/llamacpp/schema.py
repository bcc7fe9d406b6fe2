"""The bodies that llama-server's own endpoints take."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corosrv.dialects.generation import fields
from corosrv.dialects.generation.fields import Lora, ModelName
from corosrv.dialects.generation.prompts import PromptField
from corosrv.dialects.generation.thoughts import TaggedThoughtFields

MAX_PROMPTS = 64
MAX_CHOICES = 128
MAX_PROBS = 100
MAX_EXTRA = 256
MAX_TOKENS = 524_288
MAX_TEXTS = 8192  # in one list to be tokenised

UNSUPPORTED: fields.Neutral = {
    **{name: neutral for name, neutral in fields.EVERYWHERE.items() if name != "n_indent"},
    **fields.NO_FORKS,
    "n_cache_reuse": (0,),
    "sse_ping_interval": (),
}


class NativeFields(TaggedThoughtFields, kw_only=True):
    """The fields that `/completion` and `/infill` share."""

    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    n_cmpl: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    json_schema: dict[str, Any] | bool | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    n_indent: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    response_fields: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] | None = None


class NativeCompletionBody(NativeFields, kw_only=True):
    prompt: PromptField


class ExtraFile(msgspec.Struct):
    """Another file of the repository that is written in."""

    text: str
    filename: str = "tmp"


class InfillBody(NativeFields, kw_only=True):
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Meta(max_length=MAX_EXTRA)] | None = None
    prompt: str | None = None


class TokenizeBody(msgspec.Struct):
    content: str | Annotated[list[str | int], Meta(max_length=MAX_TOKENS)]  # a list is texts and token ids in a row
    model: ModelName | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: Annotated[list[int], Meta(max_length=MAX_TOKENS)]
    model: ModelName | None = None


class SlotFileBody(msgspec.Struct):
    filename: str


completion_decoder = fields.decoder(NativeCompletionBody, UNSUPPORTED)
infill_decoder = fields.decoder(InfillBody, UNSUPPORTED)
tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
slot_file_decoder = msgspec.json.Decoder(SlotFileBody)
adapters_decoder = msgspec.json.Decoder(Annotated[list[Lora], Meta(max_length=64)])
props_decoder = msgspec.json.Decoder(dict[str, Any])
