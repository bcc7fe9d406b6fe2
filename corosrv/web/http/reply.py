"""Answers that every dialect gives alike: JSON, errors with their status and headers, and answers that are made late.

Long JSON is encoded in turns, between which other requests are served. `Flood` bounds lines of log about what may
happen thousands of times a second.

A late answer is made when what it waits for has come, long after the view has returned and Flask's contexts are gone.
Thousands of requests may wait at once. A view that waits keeps Flask's request, its contexts and the WSGI environment,
and a greenlet with its stacks: two thirds of the 24 kB that such a request took. A late answer keeps what it is made
of.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import gevent
import msgspec
from flask import Request, Response, current_app, g, request
from flask.sansio.scaffold import Scaffold

from corosrv.base.errors import CorosrvError, ErrorKind, Unavailable
from corosrv.base.processor import Turns
from corosrv.base.waits import own_hub
from corosrv.web.http.heap import BodyShare
from corosrv.web.http.lean_flask import LeanFlask, current
from corosrv.web.http.metrics import HttpStats

log = logging.getLogger("corosrv.http")

_INTERVAL = 1.0  # seconds
_MOST_CHARACTERS = 200


def line(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Returns a client's text for use in one line of log, with line breaks and control characters escaped."""
    if text.isprintable() and len(text) <= most:
        return text
    short = text if len(text) <= most else text[:most] + "..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


class Flood:
    """Logs how often something happened, at most once a second, and counts every time.

    Where there is no hub, what happened too soon after the last line is counted in the next one.
    """

    def __init__(self, log: logging.Logger, words: str) -> None:
        """`words` has a %d where the number goes."""
        self._log = log
        self._words = words
        self._n = 0
        self._quiet_until = 0.0
        self._is_due = False

    def count(self, tell: Callable[[], None] | None = None) -> None:
        """Counts one more time. Calls `tell`, to log this time by itself, if nothing was logged for a second."""
        wait_s = self._quiet_until - time.monotonic()
        if tell is not None and wait_s <= 0 and not self._n:
            self._quiet_until = time.monotonic() + _INTERVAL
            tell()
            return
        self._n += 1
        if self._is_due:
            return
        if wait_s <= 0:
            self._tell()
        elif own_hub() is not None:
            self._is_due = True
            gevent.spawn_later(wait_s, self._tell)

    def _tell(self) -> None:
        n, self._n = self._n, 0
        self._is_due = False
        self._quiet_until = time.monotonic() + _INTERVAL
        self._log.warning(self._words, n)


# Apart, for anybody can make many of the one kind, among which the other would be lost.
_unavailable = Flood(log, "%d more requests could not be served")
_failed = Flood(log, "%d more requests failed")

_PORTION = 65_536  # bytes of a body that are copied and sent at once
_ERROR = "corosrv_error"


class _WholeResponse(Response):
    """An answer whose body and headers are complete, so that werkzeug's own steps are left out."""

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "HEAD" or self._on_close:
            return super().__call__(environ, start_response)
        start_response(self.status, self.headers.to_wsgi_list())
        return self.response


def json_response(value: Any, status: int = 200) -> Response:
    return _WholeResponse(msgspec.json.encode(value), status, content_type="application/json")


def whole_response(pieces: Sequence[bytes | memoryview], content_type: str, status: int = 200) -> Response:
    """Makes an answer of a body that was encoded in pieces; short ones are sent together, long ones portion by portion.

    The pieces must not change until they are sent.
    """
    n_bytes = sum(map(len, pieces))
    body = [b"".join(pieces)] if n_bytes <= _PORTION else _portions(pieces)
    answer = _WholeResponse(body, status, content_type=content_type)
    answer.headers["Content-Length"] = str(n_bytes)
    return answer


def _portions(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    for piece in pieces:
        for begin in range(0, len(piece), _PORTION):
            yield bytes(piece[begin : begin + _PORTION])


def encoded_response(pieces: Sequence[bytes], status: int = 200) -> Response:
    """Makes an answer of JSON text that was encoded in pieces."""
    answer = Response(pieces, status, mimetype="application/json")
    answer.content_length = sum(map(len, pieces))
    return answer


def error_response(error: CorosrvError, body: Any, request_line: str = "") -> Response:
    """Makes the answer for an error from its body in a dialect's shape. Logs what is not the client's doing.

    `request_line`: method and path for the log, where no request of Flask's is at hand.
    """
    if not request_line:
        setattr(current(g), _ERROR, error)
    answer = json_response(body, error.status)
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        answer.headers["Retry-After"] = str(error.retry_after)
    if error.should_retry is not None:
        answer.headers["X-Should-Retry"] = str(error.should_retry).lower()
    if error.ends_connection:
        answer.headers["Connection"] = "close"
    if error.status >= 500 and error.kind is not ErrorKind.NOT_OFFERED:
        flood = _unavailable if isinstance(error, Unavailable) else _failed
        flood.count(
            lambda: log.warning("%s: %s", line(request_line or f"{request.method} {request.path}"), line(str(error)))
        )
    return answer


def take_error() -> CorosrvError | None:
    """Returns the error that the current request is answered with, once; None if it is answered well."""
    error: CorosrvError | None = current(g).pop(_ERROR, None)
    return error


def register_errors(routes: Scaffold, body: Callable[[CorosrvError], Any]) -> None:
    """Gives errors of these routes the shape that `body` makes."""

    def answer(error: CorosrvError) -> Response:
        return error_response(error, body(error))

    routes.register_error_handler(CorosrvError, answer)


_AT_ONCE = 64  # members of a list


def long_json_response(value: Any) -> Response:
    """Makes a JSON answer of a value that may hold long lists. Lets others run meanwhile; costs more for short ones."""
    return Response(encode(value), mimetype="application/json")


def encode(value: Any) -> bytes:
    """Encodes objects and lists piece by piece. Lets others run meanwhile."""
    return b"".join(Turns().among(_pieces(value)))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        yield b"{"
        for number, (name, member) in enumerate(value.items()):
            yield (b"," if number else b"") + msgspec.json.encode(name) + b":"
            yield from _pieces(member)
        yield b"}"
    elif isinstance(value, list) and len(value) > _AT_ONCE:
        yield b"["
        for begin in range(0, len(value), _AT_ONCE):
            yield (b"," if begin else b"") + msgspec.json.encode(value[begin : begin + _AT_ONCE])[1:-1]
        yield b"]"
    else:
        yield msgspec.json.encode(value)


# In the WSGI environment: the server needs no greenlet for a request whose answer is late.
PARKS = "corosrv.parks_requests"
_OF_BODY = ("content-type", "content-length")


class PendingAnswer(Protocol):
    """Describes what an answer is made of, once it is there."""

    def on_ready(self, listener: Callable[[], None]) -> bool:
        """Calls `listener` once, when `answer` need not wait any more; it must not wait.

        Returns False, and never calls it, if that is so now, or cannot be told.
        """

    def answer(self) -> Response:
        """Makes the answer. Waits until it can; raises CorosrvError. No request of Flask's is at hand."""

    def answer_error(self, error: CorosrvError) -> Response:
        """Makes the answer for an error that `answer` raised."""

    def close(self) -> None:
        """Ends what the answer waits for, if it has not ended. Twice is harmless."""


class RequestAccount:
    """Counts a request until its late answer was sent: as work, as an answer, and the bytes of its body."""

    __slots__ = ("_is_open", "_route", "_share", "_stats")

    def __init__(self, stats: HttpStats, route: str, share: BodyShare | None) -> None:
        """Takes over work that has begun, and a share of the budget of bodies."""
        self._stats = stats
        self._route = route
        self._share = share
        self._is_open = True

    def count_answer(self, status: int) -> None:
        self._stats.count_answer(self._route, status)

    def close(self) -> None:
        """Ends the work, and gives the share back. Twice is harmless."""
        if self._is_open:
            self._is_open = False
            self._stats.end_work()
            if self._share is not None:
                self._share.close()


class LateBody:
    """A WSGI body that says its status and headers when it is read, which is when its answer is made.

    The server calls close() whatever happens.
    """

    __slots__ = ("_account", "_headers", "_pending", "_start_response")

    def __init__(
        self,
        pending: PendingAnswer,
        headers: list[tuple[str, str]],
        start_response: Any,
        account: RequestAccount | None = None,
    ) -> None:
        """`headers`: those that the answer gets besides its own. `account`: whom to tell of the request's end."""
        self._pending = pending
        self._headers = headers
        self._start_response = start_response
        self._account = account

    def on_ready(self, listener: Callable[[], None]) -> bool:
        """Calls `listener` once, when reading need not wait for the answer; see PendingAnswer."""
        return self._pending.on_ready(listener)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the pieces of the answer. Waits for it."""
        try:
            answer = self._pending.answer()
        except CorosrvError as error:
            answer = self._pending.answer_error(error)
        if self._account is not None:
            self._account.count_answer(answer.status_code)
        self._start_response(answer.status, [*answer.headers.to_wsgi_list(), *self._headers])
        yield from answer.response  # type: ignore[misc]

    def close(self) -> None:
        self._pending.close()
        if self._account is not None:
            self._account.close()


class LateResponse(Response):
    """Stands for an answer that is made later. What hooks add to its headers, the answer gets."""

    def __init__(self, pending: PendingAnswer) -> None:
        super().__init__(direct_passthrough=True)
        self.account: RequestAccount | None = None
        self._pending = pending

    def __call__(self, environ: Any, start_response: Any) -> Any:
        headers = [(name, value) for name, value in self.headers.to_wsgi_list() if name.lower() not in _OF_BODY]
        return LateBody(self._pending, headers, start_response, self.account)


def respond(request: Request, pending: PendingAnswer) -> Response:
    """Answers a request now, which waits, or late where the server needs no greenlet for that.

    An application of somebody else's has hooks that may look at the answer, and gets it as soon as it sees it.
    """
    if PARKS in request.environ and isinstance(current(current_app), LeanFlask):
        return LateResponse(pending)
    try:
        return pending.answer()
    finally:
        pending.close()
