"""Describes OpenAI's endpoints for the API document."""

from __future__ import annotations

from corosrv.dialects.openai import answer_types
from corosrv.dialects.openai.chat.schema import ChatBody, ControlBody
from corosrv.dialects.openai.completions import CompletionBody
from corosrv.images.intake import PROMPTS, images_in
from corosrv.web.groups import GenerateHeaders
from corosrv.web.http.openapi import GENERATES, operation

_DONE = "[DONE]"

chat = operation(
    "Chat",
    "Answer a conversation",
    "The conversation is written as the model's own chat template has it. A last message of the assistant's is "
    "continued: the answer is what follows it, and with `echo` both. With `stream`, text comes as it is generated. "
    + images_in("parts of type `image_url` of a user's message"),
    body=ChatBody,
    answer=answer_types.ChatCompletion,
    events=answer_types.ChatChunk,
    events_end=_DONE,
    headers=GenerateHeaders,
    statuses=GENERATES,
    examples={
        "A question": {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 64},
        "Streamed, with usage": {
            "messages": [
                {"role": "system", "content": "You answer in one sentence."},
                {"role": "user", "content": "Why is the sky blue?"},
            ],
            "max_tokens": 64,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    },
)
control = operation(
    "Chat",
    "End the thoughts of a chat that is being answered",
    "As llama-server's page does. The chat was asked for with `reasoning_control: true`; its text follows at once.",
    body=ControlBody,
    answer=answer_types.ControlAnswer,
    statuses=(400, 413, 415),
    examples={"End thoughts": {"id": "chatcmpl-1", "action": "reasoning_end"}},
)
count = operation(
    "Chat",
    "Count a conversation's tokens",
    "As many as `prompt_tokens` would be in its usage.",
    body=ChatBody,
    answer=answer_types.InputTokens,
    statuses=GENERATES,
    examples={"A question": {"messages": [{"role": "user", "content": "Name three colours."}]}},
)
completion = operation(
    "Text",
    "Continue a prompt",
    "A prompt is a text or a list of token ids, and there may be several. Each gets `n` answers. " + images_in(PROMPTS),
    body=CompletionBody,
    answer=answer_types.TextCompletion,
    events=answer_types.TextCompletion,
    events_end=_DONE,
    headers=GenerateHeaders,
    statuses=GENERATES,
    examples={
        "A prompt": {"prompt": "Once upon a time", "max_tokens": 32},
        "Several prompts, greedy": {"prompt": ["One, two,", "Red, green,"], "max_tokens": 8, "temperature": 0},
    },
)
models = operation(
    "Models", "List the models", "Loaded or not: `status` says which.", answer=answer_types.ModelList, statuses=(503,)
)
model = operation(
    "Models",
    "Describe one model",
    answer=answer_types.ListedModel,
    statuses=(404, 503),
    parameters={"name": "its id, or one of its aliases"},
)
