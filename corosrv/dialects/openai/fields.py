"""Fields that OpenAI's bodies share, besides the fields of all generating endpoints."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corosrv.base.errors import Refused
from corosrv.dialects.generation.thoughts import ThoughtFields

MAX_CHOICES = 128
MAX_PROBS = 100


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class CompletionFields(ThoughtFields, kw_only=True):
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    stream_options: StreamOptions | None = None
    verbose: bool | None = None


def includes_usage(fields: CompletionFields) -> bool:
    """Tells whether a stream ends with its usage. Raises Refused for options without a stream."""
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise Refused("stream_options is only allowed with stream: true", "stream_options")
    return bool(fields.stream_options.include_usage)


def input_tokens(n: int) -> dict[str, Any]:
    """Makes OpenAI's answer about the number of a prompt's tokens."""
    return {"object": "response.input_tokens", "input_tokens": n}
