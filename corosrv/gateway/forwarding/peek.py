"""Looks into a body for what decides where it goes, and when: all else is the upstream's to judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.contracts.jobs.job import LAST_PRIORITY
from corosrv.formats.bodies import decode_unscanned

MAX_PROMPT = 16 << 10  # bytes of a prompt's beginning
MAX_TOOLS = 4 << 10  # bytes of them that declarations of tools may take
MAX_SESSION = 256  # characters


class RoutedBody(msgspec.Struct):
    """Holds the members of a body that say where it goes. Of any type: a wrong one is the upstream's to refuse."""

    model: Any = None
    priority: Any = None
    user: Any = None
    prompt_cache_key: Any = None


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


@dataclass(frozen=True, slots=True)
class Peeked:
    """Holds what a body says. `session`: the name that it gives its session; `prompt`: the beginning, if asked for."""

    model: str | None
    priority: int | None
    session: str
    prompt: bytes = b""


def peek(body: bytes, *, reads_prompt: bool) -> Peeked:
    """Looks into a body. Raises InvalidJson, and Refused for JSON that is no object."""
    routed: RoutedBody = decode_unscanned(body, _prompted) if reads_prompt else decode_unscanned(body, _routed)
    priority = routed.priority
    is_known = isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= LAST_PRIORITY
    return Peeked(
        model=routed.model if isinstance(routed.model, str) and routed.model else None,
        priority=priority if is_known else None,
        session=next((name[:MAX_SESSION] for name in (routed.prompt_cache_key, routed.user) if _is_name(name)), ""),
        prompt=_beginning(routed) if isinstance(routed, PromptedBody) else b"",
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


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
