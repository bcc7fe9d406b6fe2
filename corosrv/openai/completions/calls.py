"""Text completions, the way in: bodies to calls."""

from __future__ import annotations

import msgspec

from corosrv.generation import fields, unsupported
from corosrv.generation.exchange import Call
from corosrv.generation.prompts import prompts
from corosrv.jobs import ModelCard
from corosrv.openai.completions import schema
from corosrv.openai.completions.answers import TextAnswer
from corosrv.openai.fields import includes_usage


def call(body: schema.CompletionBody, sent: msgspec.Struct, defaults: fields.Defaults, card: ModelCard) -> Call:
    """A checked text completion; `sent` are its unsupported fields. Raises Refused, which names the parameter."""
    unsupported.refuse(sent, schema.UNSUPPORTED)
    include_usage = includes_usage(body)
    job = fields.job(body, prompts(body.prompt, "prompt", schema.MAX_PROMPTS), defaults, body.n or 1, least_tokens=0)
    stream = bool(body.stream)
    return Call(job, stream, lambda prompt_tokens: TextAnswer(job, card, prompt_tokens, include_usage))
