"""Joins the events of a message in Anthropic's form."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.contracts.jobs.job import new_id
from corosrv.gateway.forwarding.event_join import EventJoin, StreamedError

MAX_BLOCKS = 1024
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_USAGE = {"input_tokens": 0, "output_tokens": 0}


class MessageJoin(EventJoin):
    """Makes a message of its blocks."""

    def __init__(self, model: Any) -> None:
        """`model`: that was asked for, which a message has that never began."""
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
