"""Shares what chat and text completions send: members, order of events, usage, and the end of a stream."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec

from corosrv.errors import CorosrvError
from corosrv.generation.events import event
from corosrv.generation.tally import Tally
from corosrv.jobs import ModelCard
from corosrv.openai import errors

DONE = b"data: [DONE]\n\n"

encode = msgspec.json.encode


def usage(tally: Tally, reasoning_tokens: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": tally.prompt_tokens,
        "completion_tokens": tally.completion_tokens,
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": tally.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


class Frame:
    """Makes events from the choices of one answer, and what follows the last of them."""

    def __init__(self, id_prefix: str, object: str, model: ModelCard, n_choices: int, include_usage: bool) -> None:
        self.members = {
            "id": id_prefix + secrets.token_hex(16),
            "object": object,
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": model.fingerprint,
        }
        self._include_usage = include_usage
        self._n_open = n_choices

    def text_frame(self, prefix: bytes, suffix: bytes) -> tuple[bytes, bytes]:
        """Returns what precedes and follows the text of an event, whose choice has `prefix` and `suffix` around it."""
        end = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"
        return b"data: " + encode(self.members)[:-1] + b',"choices":[' + prefix, suffix + end

    def event(self, choice: dict[str, Any], **more: Any) -> bytes:
        """An event of one choice."""
        if self._include_usage:
            more["usage"] = None
        return event({**self.members, "choices": [choice], **more})

    def end(self, choice: dict[str, Any], tally: Tally, reasoning_tokens: int = 0, **more: Any) -> bytes:
        """The event that ends a choice; after the last one also usage, timings and the end of the stream."""
        self._n_open -= 1
        if self._n_open:
            return self.event(choice, **more)
        if not self._include_usage:
            return self.event(choice, timings=tally.timings(), **more) + DONE
        last = {"choices": [], "usage": usage(tally, reasoning_tokens), "timings": tally.timings()}
        return self.event(choice, **more) + event(self.members | last) + DONE

    def complete(self, choices: list[dict[str, Any]], tally: Tally, reasoning_tokens: int = 0) -> dict[str, Any]:
        """The answer that is not streamed."""
        return {
            **self.members, "choices": choices, "usage": usage(tally, reasoning_tokens), "timings": tally.timings()
        }  # fmt: skip


def failure(error: CorosrvError) -> bytes:
    """The event that ends a stream in an error; no `[DONE]` follows."""
    return event(errors.body(error))
