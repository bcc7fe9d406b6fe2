"""The body of a text completion."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from corosrv.dialects.generation import fields
from corosrv.dialects.generation.embeds import NUMBER_BYTES
from corosrv.dialects.generation.prompts import PromptField
from corosrv.dialects.openai.structured_fields import MAX_CHOICES, FormFields

MAX_PROMPTS = 64

UNSUPPORTED = fields.EVERYWHERE

_EMBEDS = (
    "Embedding rows in place of a prompt, where the server takes them: base64 of little-endian numbers, row by row. "
    "`GET /v1/models/{id}` tells how wide and how many they are"
)
_EMBEDS_SCHEMA = {
    "type": ["object", "null"],
    "properties": {
        "dtype": {"enum": list(NUMBER_BYTES)},
        "shape": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        "data": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["dtype", "shape", "data"],
    "additionalProperties": False,
}


class CompletionBody(FormFields, kw_only=True):
    prompt: PromptField | None = None
    prompt_embeds: Annotated[Any, Meta(description=_EMBEDS, extra_json_schema=_EMBEDS_SCHEMA)] = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None


decoder = fields.decoder(CompletionBody, UNSUPPORTED)
