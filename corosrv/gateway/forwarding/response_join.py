"""Joins the events of a response in OpenAI's newer form."""

from __future__ import annotations

import time
from typing import Any

from corosrv.contracts.jobs.job import new_id
from corosrv.gateway.forwarding.event_join import EventJoin, StreamedError

MAX_ITEMS = 1024
_ENDS = ("response.completed", "response.incomplete", "response.cancelled")
_TEXTS = ("response.output_text.delta", "response.reasoning_text.delta")
_CUT_OFF = "incomplete"


class ResponseJoin(EventJoin):
    """Makes a response: the one that its last event has, or one of the items that have come so far."""

    def __init__(self, model: Any) -> None:
        """`model`: that was asked for, which a response has that never began."""
        super().__init__()
        self._response: dict[str, Any] = {"object": "response", "created_at": int(time.time()), "model": model}
        self._items: list[dict[str, Any]] = []
        self._is_over = False

    def take(self, event: dict[str, Any]) -> None:
        kind: str = event["type"]
        if kind == "error":
            raise StreamedError({"error": event.get("error") or event})
        if kind == "response.failed":
            raise StreamedError({"error": event["response"]["error"]})
        if kind in _ENDS:
            self._is_over = True
            self._response = dict(event["response"])
        elif "response" in event:
            self._response = dict(event["response"])
        elif kind == "response.output_item.added":
            self._add(event["output_index"], event["item"])
        elif kind == "response.output_item.done":
            self._item(event)
            self._items[event["output_index"]] = dict(event["item"])
        elif kind == "response.content_part.added":
            self._parts(event).append(dict(event["part"]))
        elif kind in _TEXTS:
            part = self._parts(event)[event["content_index"]]
            part["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            item = self._item(event)
            item["arguments"] += event["delta"]

    def _add(self, number: int, item: dict[str, Any]) -> None:
        if number != len(self._items) or number >= MAX_ITEMS:
            raise ValueError(f"item {number} does not come after {len(self._items)} others")
        self._items.append(dict(item))

    def _item(self, event: dict[str, Any]) -> dict[str, Any]:
        number: int = event["output_index"]
        if not 0 <= number < len(self._items):
            raise ValueError(f"item {number} has not begun")
        return self._items[number]

    def _parts(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        item = self._item(event)
        parts = item["content"] = list(item.get("content") or ())
        if not 0 <= event["content_index"] <= len(parts) < MAX_ITEMS:
            raise ValueError(f"part {event['content_index']} does not come after {len(parts)} others")
        return parts

    @property
    def is_complete(self) -> bool:
        return self._is_over

    def answer(self, unfinished: str | None = None) -> dict[str, Any]:
        if self._is_over:
            return self._response
        items = [{**item, "status": _CUT_OFF} if item.get("status") == "in_progress" else item for item in self._items]
        details = {"reason": unfinished}
        begun = {"id": new_id("resp_"), **self._response}
        return {**begun, "status": _CUT_OFF, "incomplete_details": details, "output": items}
