"""The body of a text completion."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from corosrv.generation import unsupported
from corosrv.generation.prompts import PromptField
from corosrv.openai.fields import MAX_CHOICES
from corosrv.openai.structured_fields import FormFields

MAX_PROMPTS = 64

UNSUPPORTED = unsupported.EVERYWHERE


class CompletionBody(FormFields, kw_only=True):
    prompt: PromptField
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None


decoder = unsupported.decoder(CompletionBody, UNSUPPORTED)
