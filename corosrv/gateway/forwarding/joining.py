"""Joins the events of a streamed completion to the answer that would have come without a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corosrv.gateway.forwarding.event_join import EventJoin, StreamedError

_PIECES = ("content", "reasoning_content", "reasoning", "refusal")  # of a delta: strings that follow each other
_OBJECTS = {"chat.completion.chunk": "chat.completion"}
MAX_CHOICES = 1024


class AnswerJoin(EventJoin):
    """Makes the answer of the choices of a chat or a text."""

    def __init__(self, n_choices: int, *, is_chat: bool) -> None:
        """`n_choices`: that were asked for, and are in the answer even if nothing of them has come."""
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
