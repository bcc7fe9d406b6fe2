"""Asks for a stream where an answer as a whole was asked for, so that there is something of it at every moment."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.gateway.forwarding.event_join import EventJoin
from corosrv.gateway.forwarding.joining import AnswerJoin
from corosrv.gateway.forwarding.message_join import MessageJoin
from corosrv.gateway.forwarding.native_join import NativeJoin
from corosrv.gateway.forwarding.response_join import ResponseJoin

_CHATS = frozenset({"/v1/chat/completions", "/chat/completions"})
_TEXTS = frozenset({"/v1/completions"})
_NATIVE = frozenset({"/completion", "/completions"})
_MESSAGES = frozenset({"/v1/messages"})
_RESPONSES = frozenset({"/v1/responses", "/responses"})
_KNOWN = _CHATS | _TEXTS | _NATIVE | _MESSAGES | _RESPONSES
_READ = frozenset({
    "background", "best_of", "model", "n", "n_cmpl", "prompt", "response_fields", "return_tokens", "stream",
})  # fmt: skip
_MAX_CHOICES = 128
_WITH_USAGE = msgspec.Raw(b'{"include_usage":true}')


def as_stream(path: str, body: bytes) -> tuple[bytes, EventJoin] | None:
    """Makes the body that asks for an answer as a stream, and what joins that to the answer that was asked for.

    Returns None where that cannot be, or a stream is asked for anyway. The body is known to be a JSON object.
    """
    if path not in _KNOWN:
        return None
    members: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    options: dict[str, Any] = {name: msgspec.json.decode(members[name]) for name in members.keys() & _READ}
    join = None if options.get("stream") else _join(path, options)
    if join is None:
        return None
    members["stream"] = msgspec.Raw(b"true")
    if isinstance(join, AnswerJoin):
        members["stream_options"] = _WITH_USAGE
    return msgspec.json.encode(members), join


def _join(path: str, options: dict[str, Any]) -> EventJoin | None:
    if path in _MESSAGES:
        return MessageJoin(options.get("model"))
    if path in _RESPONSES:
        return None if options.get("background") else ResponseJoin(options.get("model"))
    return _native_join(options) if path in _NATIVE else _answer_join(options, is_chat=path in _CHATS)


def _answer_join(options: dict[str, Any], *, is_chat: bool) -> AnswerJoin | None:
    n = options.get("n") or 1
    if options.get("best_of") or not _is_number(n):
        return None  # with several tries it is known at the end alone which are the best
    prompt = options.get("prompt", "")
    n_choices = n * (len(prompt) if _is_list_of_prompts(prompt) else 1)
    return AnswerJoin(n_choices if 0 < n_choices <= _MAX_CHOICES else 1, is_chat=is_chat)


def _native_join(options: dict[str, Any]) -> NativeJoin | None:
    """Returns None for several answers, which servers put together in different ways, and for picked members."""
    n_answers = [options.get(name) or 1 for name in ("n", "n_cmpl")]
    if n_answers != [1, 1] or _is_list_of_prompts(options.get("prompt")) or options.get("response_fields"):
        return None
    return NativeJoin(has_tokens=bool(options.get("return_tokens")))


def _is_list_of_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
