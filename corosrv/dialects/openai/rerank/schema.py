"""The body that asks for scores."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from corosrv.dialects.generation.fields import ModelName, Priority

MAX_DOCUMENTS = 2048

Documents = Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class RerankBody(msgspec.Struct, kw_only=True):
    """`texts` in the place of `documents` asks for the answer that text-embeddings-inference gives."""

    query: Annotated[str, Meta(min_length=1)]
    model: ModelName | None = None
    priority: Priority | None = None
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_text: bool | None = None


decoder = msgspec.json.Decoder(RerankBody)
