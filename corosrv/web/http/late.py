"""Makes answers when what they wait for has come, long after the view has returned and Flask's contexts are gone.

Thousands of requests may wait at once. A view that waits keeps Flask's request, its contexts and the WSGI environment,
and a greenlet with its stacks: two thirds of the 24 kB that such a request took. A late answer keeps what it is made
of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from flask import Request, Response, current_app

from corosrv.base.errors import CorosrvError
from corosrv.web.http.heap import BodyShare
from corosrv.web.http.lean_flask import LeanFlask, current
from corosrv.web.http.metrics import HttpStats

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
