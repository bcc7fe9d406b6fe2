"""Turns a request for a whole answer into one for a stream, so that an abort finds what there is of it so far.

The events of chats and text completions are joined here to the answer that would have come without a stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from corosrv.gateway.forwarding.event_join import EventJoin, MessageJoin, NativeJoin, ResponseJoin, StreamedError

_PIECES = ("content", "reasoning_content", "reasoning", "refusal")  # of a delta: strings that follow each other
_OBJECTS = {"chat.completion.chunk": "chat.completion"}
MAX_CHOICES = 1024


class AnswerJoin(EventJoin):
    """Makes the answer of the choices of a chat or a text."""

    def __init__(self, n_choices: int, *, is_chat: bool) -> None:
        """`n_choices`: how many the request asked for; the answer has as many, also those of which nothing came."""
        super().__init__()
        self._is_chat = is_chat
        self._members: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        for index in range(n_choices):
            self._choice(index)

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event and not event.get("choices"):
            raise StreamedError(event)
        for name, value in event.items():
            if name != "choices" and value is not None:
                self._members[name] = value
        for piece in event.get("choices") or ():
            self._add(self._choice(int(piece.get("index") or 0)), piece)

    def _choice(self, index: int) -> dict[str, Any]:
        if not 0 <= index < MAX_CHOICES:
            raise TypeError(f"there is no choice {index}")
        if index not in self._choices:
            message = {"role": "assistant", "content": "", "refusal": None}
            content: dict[str, Any] = {"message": message} if self._is_chat else {"text": ""}
            self._choices[index] = {"index": index, **content, "logprobs": None, "finish_reason": None}
        return self._choices[index]

    def _add(self, choice: dict[str, Any], piece: dict[str, Any]) -> None:
        for name, value in piece.items():
            if value is None or name == "index":
                continue
            if name == "delta":
                _add_delta(choice["message"], value)
            elif name == "text":
                choice["text"] += value
            elif name == "logprobs":
                choice["logprobs"] = _join_lists(choice["logprobs"] or {}, value)
            else:
                choice[name] = value

    @property
    def is_complete(self) -> bool:
        return all(choice["finish_reason"] is not None for choice in self._choices.values())

    def answer(self, unfinished: str | None = None) -> dict[str, Any]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            choice["finish_reason"] = choice["finish_reason"] or unfinished
            if self._is_chat and choice["message"].get("tool_calls"):
                choice["message"]["content"] = choice["message"]["content"] or None
        kind = self._members.get("object", "chat.completion" if self._is_chat else "text_completion")
        return {**self._members, "object": _OBJECTS.get(kind, kind), "choices": choices}


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            continue
        if name in _PIECES:
            message[name] = (message.get(name) or "") + value
        elif name == "tool_calls":
            _add_calls(message.setdefault("tool_calls", []), value)
        else:
            message[name] = value


def _add_calls(calls: list[dict[str, Any]], pieces: Iterable[dict[str, Any]]) -> None:
    for piece in pieces:
        number = int(piece.get("index") or 0)
        if not 0 <= number <= len(calls):
            raise TypeError(f"call {number} comes before those ahead of it")
        if number == len(calls):
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[number], piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _join_lists(lists: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Adds the lists of likelihoods that came with another piece."""
    for name, value in more.items():
        lists[name] = (lists.get(name) or []) + value if isinstance(value, list) else value
    return lists


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
