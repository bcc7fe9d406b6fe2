"""Joins a stream's events to one answer, in Anthropic's form, llama-server's own, and that of OpenAI's responses."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from corosrv.base.errors import WorkerLost
from corosrv.contracts.jobs.job import new_id

ABORT = "abort"  # why an answer that was cut off has ended; see corosrv.dialects.openai.events
_DATA = b"data:"
_DONE = b"[DONE]"


class StreamedError(Exception):
    """The upstream has ended the stream with an error event, whose body this is. A signal to GroupedReader."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(str(body.get("error")))
        self.body = body


class EventJoin(ABC):
    """Takes the bytes of an event stream, and makes one answer of them."""

    def __init__(self) -> None:
        self.n_bytes = 0  # that were taken
        self._held: list[bytes] = []  # pieces of a line whose end is still to come

    def feed(self, data: bytes) -> None:
        """Takes the next bytes. Raises StreamedError, and WorkerLost for what is no stream of the dialect."""
        self.n_bytes += len(data)
        first, *others = data.split(b"\n")
        self._held.append(first)
        if not others:
            return
        lines = [b"".join(self._held), *others]
        self._held = [lines.pop()]
        for line in lines:
            if line.startswith(_DATA) and (event := line[len(_DATA) :].strip()) not in (b"", _DONE):
                try:
                    self.take(msgspec.json.decode(event))
                except (AttributeError, LookupError, TypeError, ValueError) as error:
                    raise WorkerLost(f"the upstream's stream is no answer to the request: {error}") from None

    @abstractmethod
    def take(self, event: dict[str, Any]) -> None:
        """Takes an event. Raises StreamedError, AttributeError, LookupError, TypeError or ValueError if it is wrong."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Tells whether the answer has its end."""

    @abstractmethod
    def answer(self, unfinished: str | None = None) -> dict[str, Any]:
        """Makes the answer. `unfinished`: why what has no end has ended all the same."""


MAX_BLOCKS = 1024
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_USAGE = {"input_tokens": 0, "output_tokens": 0}


class MessageJoin(EventJoin):
    """Makes a message of its blocks."""

    def __init__(self, model: Any) -> None:
        """`model`: the requested model, used when the stream ended before message_start."""
        super().__init__()
        self._message: dict[str, Any] = {"type": "message", "role": "assistant", "model": model, "usage": _USAGE}
        self._blocks: list[dict[str, Any]] = []
        self._inputs: dict[int, str] = {}  # of calls of tools: the texts of their arguments
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "error":
            raise StreamedError(event)
        if kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._begin(event["index"], event["content_block"])
        elif kind == "content_block_delta":
            self._grow(event["index"], event["delta"])
        elif kind == "message_delta":
            self._stop |= event["delta"]
            self._message["usage"] = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}

    def _begin(self, number: int, block: dict[str, Any]) -> None:
        if number != len(self._blocks) or number >= MAX_BLOCKS:
            raise ValueError(f"block {number} does not come after {len(self._blocks)} others")
        self._blocks.append(dict(block))

    def _grow(self, number: int, delta: dict[str, Any]) -> None:
        if not 0 <= number < len(self._blocks):
            raise ValueError(f"block {number} has not begun")
        kind, block = delta["type"], self._blocks[number]
        if kind == "input_json_delta":
            self._inputs[number] = self._inputs.get(number, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif name := _PIECES.get(kind):
            block[name] = block.get(name, "") + delta[name]

    @property
    def is_complete(self) -> bool:
        return self._stop["stop_reason"] is not None

    def answer(self, unfinished: str | None = None) -> dict[str, Any]:
        content = [
            {**block, "input": _arguments(self._inputs[number])} if number in self._inputs else block
            for number, block in enumerate(self._blocks)
        ]
        stop = {**self._stop, "stop_reason": self._stop["stop_reason"] or unfinished}
        return {"id": new_id("msg_"), **self._message, "content": content, **stop}


def _arguments(text: str) -> Any:
    """Decodes the arguments of a call. Those of one that was cut off are an empty object: half a JSON text is none."""
    try:
        return msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError:
        return {}


_LISTS = ("tokens", "completion_probabilities")


class NativeJoin(EventJoin):
    """Makes the answer to one prompt: members are those of the last event, texts and lists those of all."""

    def __init__(self, *, has_tokens: bool) -> None:
        """`has_tokens`: whether the answer lists its tokens, as every event does."""
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


MAX_ITEMS = 1024
_ENDS = ("response.completed", "response.incomplete", "response.cancelled")
_TEXTS = ("response.output_text.delta", "response.reasoning_text.delta")
_CUT_OFF = "incomplete"


class ResponseJoin(EventJoin):
    """Makes a response: the one that its last event has, or one of the items that have come so far."""

    def __init__(self, model: Any) -> None:
        """`model`: the requested model, used when the stream ended before response.created."""
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
