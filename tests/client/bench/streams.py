"""Streams as servers send them, written by hand."""

from __future__ import annotations

import json
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    """An event of a chat."""
    return event(choices=[{"index": 0, "delta": {"content": text, **more}, "finish_reason": finish}])


def usage(tokens: int, prompt: int = 9) -> bytes:
    return event(choices=[], usage={"completion_tokens": tokens, "prompt_tokens": prompt})


def whole(tokens: int) -> bytes:
    """A stream that lacks nothing, with one token in each event."""
    return HEAD + delta("a") * tokens + delta(finish="length") + usage(tokens) + DONE


def error(status: int, message: str) -> bytes:
    body = json.dumps({"error": {"message": message}}).encode()
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
