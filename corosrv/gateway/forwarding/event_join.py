"""Reads the events of a stream that is to become one answer; what they mean is the dialect's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from corosrv.base.errors import WorkerLost

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
