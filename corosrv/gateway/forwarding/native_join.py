"""Joins the events of a completion in llama-server's own form."""

from __future__ import annotations

from typing import Any

from corosrv.gateway.forwarding.event_join import EventJoin, StreamedError

_LISTS = ("tokens", "completion_probabilities")


class NativeJoin(EventJoin):
    """Makes the answer to one prompt: members are those of the last event, texts and lists those of all."""

    def __init__(self, *, has_tokens: bool) -> None:
        """`has_tokens`: the answer has the tokens, which each event has anyway."""
        super().__init__()
        self._has_tokens = has_tokens
        self._content = ""
        self._lists: dict[str, list[Any]] = {"tokens": []}
        self._members: dict[str, Any] = {"index": 0}

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise StreamedError(event)
        self._content += event["content"]
        for name in _LISTS:
            if event.get(name):
                self._lists.setdefault(name, []).extend(event[name])
        self._members |= event

    @property
    def is_complete(self) -> bool:
        return bool(self._members.get("stop"))

    def answer(self, unfinished: str | None = None) -> dict[str, Any]:
        lists = self._lists if self._has_tokens else self._lists | {"tokens": []}
        answer = {**self._members, "content": self._content, **lists}
        if isinstance(settings := answer.get("generation_settings"), dict) and "stream" in settings:
            answer["generation_settings"] = {**settings, "stream": False}
        return answer if self.is_complete else {**answer, "stop": True, "stop_type": unfinished, "stopping_word": ""}
