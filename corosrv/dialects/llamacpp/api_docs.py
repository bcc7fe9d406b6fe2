"""Descriptions of llama-server's endpoints for the API document."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corosrv.dialects.generation.answer_types import NativeCompletion
from corosrv.dialects.generation.fields import Lora
from corosrv.dialects.llamacpp import answers, parse
from corosrv.dialects.llamacpp.loading import Success
from corosrv.dialects.openai.chat.schema import ChatBody
from corosrv.images.intake import PROMPTS, images_in
from corosrv.web.groups.routes import GenerateHeaders
from corosrv.web.http.openapi import GENERATES, NEEDS_MODEL, READS, operation


class ModelQuery(msgspec.Struct):
    """The name of the model, where the server has several."""

    model: str | None = None


class SlotsQuery(ModelQuery):
    fail_on_no_slot: Annotated[str, Meta(description="anything: 503 while every slot is busy")] | None = None


class SlotQuery(ModelQuery, kw_only=True):
    action: Annotated[str, Meta(description="save, restore or erase")]


complete = operation(
    "Text",
    "Continue a prompt, as llama-server does",
    images_in(PROMPTS),
    body=parse.NativeCompletionBody,
    answer=NativeCompletion | list[NativeCompletion],
    events=NativeCompletion,
    headers=GenerateHeaders,
    statuses=GENERATES,
    examples={
        "A prompt": {"prompt": "Once upon a time", "n_predict": 32},
        "Streamed": {"prompt": "Once upon a time", "n_predict": 32, "stream": True},
    },
)
infill = operation(
    "Text",
    "Fill a gap",
    "For models whose vocabulary has tokens for it.",
    body=parse.InfillBody,
    answer=NativeCompletion | list[NativeCompletion],
    events=NativeCompletion,
    headers=GenerateHeaders,
    statuses=(*GENERATES, 501),
    examples={"A function": {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "n_predict": 16}},
)
tokenize = operation(
    "Tokens",
    "Turn text into tokens",
    body=parse.TokenizeBody,
    answer=answers.TokenList,
    statuses=(*READS, *NEEDS_MODEL),
    examples={"With pieces": {"content": "The sea is wide.", "with_pieces": True}},
)
detokenize = operation(
    "Tokens",
    "Turn tokens into text",
    body=parse.DetokenizeBody,
    answer=answers.Content,
    statuses=(*READS, *NEEDS_MODEL),
    examples={"Three tokens": {"tokens": [1, 2, 3]}},
)
apply_template = operation(
    "Tokens",
    "Write a conversation as the model reads it",
    body=ChatBody,
    answer=answers.PromptText,
    statuses=GENERATES,
    examples={"A question": {"messages": [{"role": "user", "content": "Name three colours."}]}},
)
get_props = operation(
    "Server",
    "Tell the server's properties",
    answer=answers.ServerProperties,
    statuses=NEEDS_MODEL,
    query=ModelQuery,
)
set_props = operation(
    "Server", "Change the server's properties", body=dict[str, Any], answer=Success, statuses=(*READS, 501)
)
get_adapters = operation(
    "Models", "List the LoRA adapters", answer=list[answers.ListedAdapter], statuses=NEEDS_MODEL, query=ModelQuery
)
set_adapters = operation(
    "Models",
    "Scale the LoRA adapters",
    "For jobs that do not say; adapters that are not named get none of it.",
    body=Annotated[list[Lora], Meta(max_length=64)],
    answer=Success,
    statuses=(*READS, *NEEDS_MODEL),
    query=ModelQuery,
    examples={"None of any": []},
)
get_slots = operation(
    "Server",
    "Show what the slots do",
    answer=list[answers.SlotDescription],
    statuses=(*NEEDS_MODEL, 501),
    query=SlotsQuery,
)
change_slot = operation(
    "Server",
    "Keep a slot's content in a file",
    "Or read it back, or forget it, which needs no body.",
    body=parse.SlotFileBody,
    answer=answers.SlotFileAnswer,
    statuses=(*READS, *NEEDS_MODEL, 501),
    parameters={"slot": "its number"},
    query=SlotQuery,
    examples={"A file": {"filename": "slot.bin"}},
)
