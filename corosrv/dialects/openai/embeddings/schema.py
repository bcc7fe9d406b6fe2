"""The bodies that ask for embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from corosrv.dialects.generation.fields import ModelName, Priority
from corosrv.dialects.generation.prompts import PromptField

MAX_INPUTS = 2048


class EmbeddingFields(msgspec.Struct, kw_only=True):
    model: ModelName | None = None
    priority: Priority | None = None
    embd_normalize: Annotated[int, Meta(ge=-1, le=100)] | None = None


class EmbeddingBody(EmbeddingFields, kw_only=True):
    input: PromptField
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class NativeBody(EmbeddingFields, kw_only=True):
    """llama-server's, which knows the texts under either name."""

    content: PromptField | None = None
    input: PromptField | None = None


decoder = msgspec.json.Decoder(EmbeddingBody)
native_decoder = msgspec.json.Decoder(NativeBody)
