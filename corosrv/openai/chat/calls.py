"""Chat completions, the way in: bodies to calls."""

from __future__ import annotations

import msgspec

from corosrv.chat.conversation import Conversation
from corosrv.chat.prepare import prepare
from corosrv.errors import NotSupported, Refused
from corosrv.generation import fields, unsupported
from corosrv.generation.exchange import Call
from corosrv.jobs import Messages, ModelCard
from corosrv.openai.chat import messages, schema
from corosrv.openai.chat.answers import ChatAnswer
from corosrv.openai.fields import includes_usage


def call(body: schema.ChatBody, sent: msgspec.Struct, defaults: fields.Defaults, card: ModelCard) -> Call:
    """A checked chat completion; `sent` are its unsupported fields. Raises Refused, which names the parameter."""
    unsupported.refuse(sent, schema.UNSUPPORTED)
    include_usage = includes_usage(body)
    job, parser = prepare(conversation(body, defaults), card)
    stream = bool(body.stream)
    return Call(job, stream, lambda prompt_tokens: ChatAnswer(job, card, prompt_tokens, parser, stream, include_usage))


def conversation(body: schema.ChatBody, defaults: fields.Defaults) -> Conversation:
    """What a body asks for, whatever model answers it. Raises Refused."""
    return Conversation(fields.job(body, (prompt(body),), defaults, body.n or 1, least_tokens=1))


def prompt(body: schema.ChatBody) -> Messages:
    """The conversation to be rendered. Raises Refused."""
    if body.chat_template is not None:
        raise NotSupported("chat_template: a template in a request is not run here", "chat_template")
    turns = tuple(messages.turn(message, f"messages[{i}]") for i, message in enumerate(body.messages))
    is_last_ours = turns[-1]["role"] == "assistant"
    if is_last_ours and len(turns) > 1 and turns[-2]["role"] == "assistant":
        raise Refused("messages: two assistant messages in a row at the end", "messages")
    if body.add_generation_prompt and body.continue_final_message:
        raise Refused(
            "add_generation_prompt and continue_final_message contradict each other", "continue_final_message"
        )
    if body.continue_final_message and not is_last_ours:
        raise Refused("continue_final_message: the last message must be the assistant's", "continue_final_message")
    continue_final = is_last_ours and not body.add_generation_prompt and body.continue_final_message is not False
    return Messages(
        turns,
        add_generation_prompt=not continue_final and body.add_generation_prompt is not False,
        continue_final=continue_final,
        template_arguments=messages.template_arguments(body.chat_template_kwargs or {}),
    )
