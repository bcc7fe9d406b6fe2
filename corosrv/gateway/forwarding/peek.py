"""Looks into a body for what decides where it goes, and when: all else is the upstream's to judge.

The paths that are forwarded are those by which llama-server, vLLM, SGLang and corosrv generate, and the like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.contracts.jobs.terms import LAST_PRIORITY
from corosrv.formats.bodies import decode_unscanned


@dataclass(frozen=True, slots=True)
class ForwardedPath:
    """Describes one path that takes a POST with a JSON object."""

    path: str
    tag: str  # its heading in the API document
    summary: str
    is_anthropic: bool = False  # its errors have the form of Anthropic's; all others that of OpenAI's
    is_local: bool = True  # a model that is served here answers it, too


def _paths() -> tuple[ForwardedPath, ...]:
    chat, text, tokens, embeddings = "Chat", "Text", "Tokens", "Embeddings"
    rows: list[ForwardedPath] = []

    def add(tag: str, summary: str, *paths: str, is_local: bool = True) -> None:
        rows.extend(ForwardedPath(path, tag, summary, is_local=is_local) for path in paths)

    add(chat, "Answer a conversation", "/v1/chat/completions", "/chat/completions")
    add(chat, "Count a conversation's tokens", "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
    add(text, "Continue a text", "/v1/completions", "/completions", "/completion")
    add(text, "Fill a gap in a text", "/infill")
    add(text, "Continue a text, as SGLang has it", "/generate", is_local=False)
    add("Responses", "Answer a conversation, in the newer form", "/v1/responses", "/responses")
    add("Responses", "Compact a conversation", "/v1/responses/compact", "/responses/compact")
    rows.append(ForwardedPath("/v1/messages", "Messages", "Answer a conversation, in Anthropic's form", True))
    rows.append(ForwardedPath("/v1/messages/count_tokens", "Messages", "Count a conversation's tokens", True))
    add(embeddings, "Make vectors of texts", "/v1/embeddings", "/embeddings", "/embedding")
    add(embeddings, "Rank documents", "/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
    add(embeddings, "Score pairs of texts", "/v1/score", "/score", is_local=False)
    add(embeddings, "Pool a model's vectors", "/pooling", "/encode", is_local=False)
    add(embeddings, "Classify texts", "/classify", "/v1/classify", is_local=False)
    add(tokens, "Turn a text into tokens", "/tokenize")
    add(tokens, "Turn tokens into a text", "/detokenize")
    add(tokens, "Turn a text into tokens, or back", "/v1/tokenize", "/v1/detokenize", is_local=False)
    add(tokens, "Render a conversation as a prompt", "/apply-template")
    return tuple(rows)


FORWARDED = _paths()
# What a client of llama-server asks first.
PROPS = ForwardedPath("/props", "Models", "Describe a model and its defaults, as llama-server has it")
BY_PATH = {row.path: row for row in FORWARDED}
# Slots show what others ask, and adapters change what they get: both are of one server, and for its operator.
OF_ONE_SERVER = (("/slots", "GET"), ("/slots/<slot>", "POST"), ("/lora-adapters", "GET"), ("/lora-adapters", "POST"))
MODELS = ("/v1/models", "/models")
# What is asked about a response that an upstream has made and keeps.
KEPT = {
    ("/v1/responses/<id>", "GET"): "Read a response",
    ("/v1/responses/<id>", "DELETE"): "Delete a response",
    ("/v1/responses/<id>/cancel", "POST"): "Cancel a response that runs in the background",
    ("/v1/responses/<id>/input_items", "GET"): "List the input of a response",
}


MAX_PROMPT = 16 << 10  # bytes of a prompt's beginning
MAX_TOOLS = 4 << 10  # bytes of them that declarations of tools may take
MAX_SESSION = 256  # characters


class RoutedBody(msgspec.Struct):
    """Holds the members of a body that say where it goes. Of any type: a wrong one is the upstream's to refuse."""

    model: Any = None
    priority: Any = None
    user: Any = None
    prompt_cache_key: Any = None
    stream: Any = None
    previous_response_id: Any = None


class PromptedBody(RoutedBody):
    """Holds also those that a model reads, in the order in which it does, whatever the dialect."""

    tools: msgspec.Raw = msgspec.Raw()
    system: Any = None
    instructions: Any = None
    messages: Any = None
    input: Any = None
    prompt: Any = None
    text: Any = None
    content: Any = None


_routed = msgspec.json.Decoder(RoutedBody)
_prompted = msgspec.json.Decoder(PromptedBody)


class Peeked(msgspec.Struct, frozen=True):
    """Holds what a body says.

    `session`: the name that it gives its session. `prompt`: the beginning, if asked for. `previous_response`: the id of
    the one that it goes on from.
    """

    model: str | None
    priority: int | None
    session: str
    prompt: bytes = b""
    is_stream: bool = False
    previous_response: str = ""


def peek(body: bytes, *, reads_prompt: bool) -> Peeked:
    """Looks into a body. Raises InvalidJson, and Refused for JSON that is no object."""
    routed: RoutedBody = decode_unscanned(body, _prompted) if reads_prompt else decode_unscanned(body, _routed)
    priority = routed.priority
    is_known = isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= LAST_PRIORITY
    return Peeked(
        model=routed.model if isinstance(routed.model, str) and routed.model else None,
        priority=priority if is_known else None,
        session=_session(routed),
        prompt=_beginning(routed) if isinstance(routed, PromptedBody) else b"",
        is_stream=routed.stream is True,
        previous_response=routed.previous_response_id if isinstance(routed.previous_response_id, str) else "",
    )


def _session(body: RoutedBody) -> str:
    for name in (body.prompt_cache_key, body.user):
        if isinstance(name, str) and name:
            return name[:MAX_SESSION]
    return ""


def _beginning(body: PromptedBody) -> bytes:
    """Returns the beginning of what the model will read: tools, instructions, then messages or the prompt."""
    prompt = bytearray(bytes(body.tools)[:MAX_TOOLS])
    for member in (body.system, body.instructions, body.messages, body.input, body.prompt, body.text, body.content):
        for text in _texts(member):
            prompt += text.encode("utf-8", "replace")
            if len(prompt) >= MAX_PROMPT:
                return bytes(prompt[:MAX_PROMPT])
    return bytes(prompt)


def _texts(member: Any) -> Iterator[str]:
    """Yields the texts in a member, each with an end that no text has, so that two never read like one."""
    pending = [member]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value + "\0"
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{value}\0"  # a token of a prompt
        elif isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, dict):
            # In a fixed order: clients write the members of a message in any.
            pending += [value[name] for name in ("text", "content", "role") if name in value]
