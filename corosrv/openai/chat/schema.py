"""The body of a chat completion."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corosrv.generation import unsupported
from corosrv.openai.fields import CompletionFields

MAX_MESSAGES = 2048

UNSUPPORTED: unsupported.Neutral = {
    **unsupported.EVERYWHERE,
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "json_schema": (),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "return_tokens": (False,),
    "suffix": ("",),
    "timings_per_token": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (),
    "verbose": (False,),
    "web_search_options": (),
}


class Message(msgspec.Struct):
    """One turn; its content is checked by hand, because what is allowed depends on the role."""

    role: str
    content: str | list[dict[str, Any]] | msgspec.UnsetType | None = msgspec.UNSET
    name: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    tool_call_id: str | None = None


class ChatBody(CompletionFields, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


decoder = msgspec.json.Decoder(ChatBody)
unsupported_decoder = unsupported.decoder(UNSUPPORTED)
