"""Records an answer while it is sent, to be sent again as it was; of a stream also what follows one of its events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from flask import Response

from corosrv.contracts.idempotency import KeyClaim, SharedClaim
from corosrv.web.http.reply import Flood, whole_response
from corosrv.web.http.sse import EVENTS, LINES, EventStream
from corosrv.web.kept.answer_log import split_events
from corosrv.web.kept.streams import LAST_EVENT, stream_not_found

log = logging.getLogger("corosrv.http")
_too_large = Flood(log, "%d more answers were too large to be kept under their Idempotency-Key")

_TOO_LARGE = "an answer was too large to be kept under its Idempotency-Key; see COROSRV_IDEMPOTENCY_BYTES"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """Holds an answer as it was sent, without the headers that each answer has of its own."""

    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: tuple[bytes, ...]

    def response(self, after: int | None = None) -> Response:
        """Makes the answer to a repeated request: of a stream, what follows the event of number `after`.

        Raises NotFound for a stream that has no such event.
        """
        kind = dict(self.headers).get("Content-Type", "")
        pieces = self.pieces
        if after and kind.partition(";")[0] in (EVENTS, LINES):
            pieces = (_skip_events(b"".join(pieces), after, is_lines=kind.startswith(LINES)),)
        response = whole_response(pieces, kind, self.status)
        for name, value in self.headers:
            response.headers[name] = value
        response.headers["Idempotency-Replayed"] = "true"
        return response


def _skip_events(stream: bytes, after: int, *, is_lines: bool) -> bytes:
    """Returns what follows an event of a stream, or a line. Raises NotFound if it has none of this number."""
    end = 0
    for number, event in enumerate(split_events(stream, is_lines), 1):
        end += len(event)
        if number == after if is_lines else event.startswith(b"id: %d\n" % after):
            return stream[end:]
    raise stream_not_found(LAST_EVENT)


class AnswerClaim:
    """The right to answer the first request under a key, in this server and among those that it shares with."""

    __slots__ = ("_records", "_shared")

    def __init__(self, records: KeyClaim[KeptAnswer]) -> None:
        self._records = records
        self._shared: SharedClaim | None = None

    def share(self, shared: SharedClaim | None) -> None:
        self._shared = shared

    def grow(self, n_bytes: int) -> bool:
        """Counts bytes of the answer; see KeyClaim."""
        return self._records.grow(n_bytes)

    def finish(self, answer: KeptAnswer, now: float) -> None:
        """Keeps the answer, unless it is too large."""
        is_kept = self._records.finish(answer, now)
        if self._shared is None:
            return
        if is_kept:
            self._shared.finish(msgspec.msgpack.encode(answer))
        else:
            self._shared.drop()

    def drop(self) -> None:
        """Frees the key."""
        self._records.drop()
        if self._shared is not None:
            self._shared.drop()

    def abandon(self) -> None:
        """Frees the key among the servers that share it. May be called while garbage is collected."""
        if self._shared is not None:
            self._shared.abandon()


class KeepsAnswers(Protocol):
    """Keeps what is recorded; see corosrv.web.kept.keyed_answers.KeyedAnswers."""

    def grow(self, claim: AnswerClaim, n_bytes: int) -> bool: ...
    def finish(self, claim: AnswerClaim, answer: KeptAnswer) -> None: ...
    def drop(self, claim: AnswerClaim) -> None: ...
    def drop_later(self, claim: AnswerClaim) -> None: ...


class AnswerRecording:
    """Records the answer of one request in the making; see corosrv.web.http.sse.Recording.

    Ends once. One that nobody ends, because the server broke down around it, ends as dropped when it is collected.
    """

    def __init__(self, answers: KeepsAnswers, claim: AnswerClaim) -> None:
        self._answers = answers
        self._claim: AnswerClaim | None = claim
        self._is_good: Callable[[], bool] | None = None
        self._status = 200
        self._headers: tuple[tuple[str, str], ...] = ()
        self._body = bytearray()
        self._is_given_up = False

    def attach(self, response: Response, is_good: Callable[[], bool] | None) -> None:
        """Keeps a response that is complete; a stream is handed over piece by piece from then on."""
        self._is_good = is_good
        self._status = response.status_code
        self._headers = tuple((name, value) for name, value in response.headers if name != "Content-Length")
        body: Any = response.response
        if not 200 <= self._status < 300:
            self.drop()
        elif isinstance(body, EventStream):
            return
        elif response.is_sequence and self._grow(sum(map(len, body))):
            self._finish(tuple(body))
        else:
            self.drop()

    def add(self, piece: bytes) -> None:
        if self._grow(len(piece)):
            self._body += piece

    def finish(self) -> None:
        self._finish((bytes(self._body),))

    def drop(self) -> None:
        claim, self._claim = self._claim, None
        self._body = bytearray()
        if claim is not None:
            self._answers.drop(claim)

    def __del__(self) -> None:
        if self._claim is not None:
            self._answers.drop_later(self._claim)

    def _grow(self, n_bytes: int) -> bool:
        if self._claim is None or self._is_given_up:
            return False
        if self._answers.grow(self._claim, n_bytes):
            return True
        self._is_given_up = True
        self._body = bytearray()
        _too_large.count(lambda: log.warning(_TOO_LARGE))
        return False

    def _finish(self, pieces: tuple[bytes, ...]) -> None:
        if self._claim is None or (self._is_good is not None and not self._is_good()):
            self.drop()
            return
        claim, self._claim = self._claim, None
        self._answers.finish(claim, KeptAnswer(self._status, self._headers, pieces))
        self._body = bytearray()
