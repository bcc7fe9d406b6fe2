"""Follows one answer as its bytes come in, and makes an outcome of it, without a socket or a clock."""

from __future__ import annotations

from array import array

import msgspec

from corosrv.client.bench.load.events import DONE, StreamEvent, decode, error_message
from corosrv.client.bench.load.http import HttpAnswer, Malformed
from corosrv.client.bench.load.outcome import Failure, FailureKind, RequestOutcome
from corosrv.client.bench.load.sse import Scanner

MAX_ERROR_BODY = 64 * 1024  # bytes


class Transcript:
    """Follows one streamed answer of `max_tokens` tokens: feed() until it is over, then outcome()."""

    __slots__ = (
        "_answer",
        "_error_body",
        "_failure",
        "_finish",
        "_max_tokens",
        "_prompt_tokens",
        "_scanner",
        "_usage_tokens",
        "arrivals",
        "events",
    )

    def __init__(self, max_tokens: int) -> None:
        self.arrivals = array("d")
        self.events = 0  # those with text
        self._max_tokens = max_tokens
        self._answer = HttpAnswer()
        self._scanner = Scanner()
        self._error_body = b""
        self._failure: Failure | None = None
        self._finish = ""
        self._usage_tokens: int | None = None
        self._prompt_tokens: int | None = None

    def feed(self, data: bytes, now: float) -> bool:
        """Takes the bytes of one read, none at the end of the connection; returns whether the answer is over."""
        try:
            body = self._answer.feed(data) if data else b""
            if self._answer.status not in (0, 200):
                return self._take_error(body, is_end=not data)
            n_before = self.events
            is_done = self._take_events(body)
        except (Malformed, msgspec.DecodeError) as error:
            return self.fail(FailureKind.MALFORMED, str(error))
        if self.events > n_before:
            self.arrivals.append(now)
        if is_done or self._answer.is_complete:
            return True
        return not data and self._take_end()

    def fail(self, kind: FailureKind, detail: str, status: int = 0) -> bool:
        """Notes a failure, of which the first counts. Returns True: the answer is over."""
        self._failure = self._failure or Failure(kind, detail, status)
        return True

    def outcome(self, began: float, end_time: float, is_arriving: bool = False) -> RequestOutcome:
        tokens = self.events if self._usage_tokens is None else self._usage_tokens
        return RequestOutcome(
            began,
            end_time,
            self.arrivals,
            self.events,
            tokens,
            self._prompt_tokens,
            self._usage_tokens is not None,
            self._finish,
            self._failure or self._shortfall(),
            is_arriving,
        )

    def _take_events(self, body: bytes) -> bool:
        for data in self._scanner.feed(body):
            if data == DONE:
                return True
            if self._take(decode(data)):
                return True
        return False

    def _take(self, event: StreamEvent) -> bool:
        for choice in event.choices:
            if choice.has_text:
                self.events += 1
            if choice.finish_reason:
                self._finish = choice.finish_reason
        # Some servers send a usage with every event: the last one counts.
        if event.usage is not None:
            self._usage_tokens = event.usage.completion_tokens
            self._prompt_tokens = event.usage.prompt_tokens
        if event.error is None:
            return False
        return self.fail(FailureKind.ERROR, error_message(msgspec.json.encode({"error": event.error})))

    def _take_error(self, body: bytes, is_end: bool) -> bool:
        self._error_body += body
        if is_end or self._answer.is_complete or len(self._error_body) > MAX_ERROR_BODY:
            return self.fail(FailureKind.STATUS, error_message(self._error_body), self._answer.status)
        return False

    def _take_end(self) -> bool:
        """Takes the end of the connection before [DONE]; returns True: the answer is over."""
        if self._answer.status == 0:
            return self.fail(FailureKind.CONNECTION, "closed before an answer")
        if not self._answer.end():
            return self.fail(FailureKind.CONNECTION, "closed within the answer")
        return True

    def _shortfall(self) -> Failure | None:
        """Returns what is missing in an answer that looks complete, if anything."""
        if not self._finish:
            return Failure(FailureKind.CUT, "the stream ended without a finish reason")
        # Events may carry several tokens: only a usage can tell that there were too few.
        tokens = self._usage_tokens
        if self._finish == "length" and tokens is not None and tokens < self._max_tokens:
            return Failure(FailureKind.SHORT, f"{tokens} tokens of {self._max_tokens}, and the finish reason is length")
        return None
