"""The body of a text completion."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.generation import unsupported
from corosrv.openai.fields import CompletionFields

MAX_PROMPTS = 64

UNSUPPORTED: unsupported.Neutral = {
    **unsupported.EVERYWHERE,
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "n_probs": (0,),
    "suffix": ("",),
}


class CompletionBody(CompletionFields, kw_only=True):
    prompt: str | list[Any]


decoder = msgspec.json.Decoder(CompletionBody)
unsupported_decoder = unsupported.decoder(UNSUPPORTED)
