"""The hooks of every request that passes Flask: what it must have to be let in, and what its answer gets."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from flask import Response, current_app, g, request

from corosrv.contracts.jobs.terms import TRACE
from corosrv.web.http import access, access_log, openapi, terms
from corosrv.web.http.access_log import AccessLog, RequestTrace
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import VISIT, Visit, current
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.reply import PARKS, LateResponse, RequestAccount
from corosrv.web.http.sse import EventStream
from corosrv.web.key_account import KeyAccount

if TYPE_CHECKING:  # a server without peers needs none of it
    from corosrv.gateway.delegation.trip import PeerGuard

log = logging.getLogger("corosrv")


class RequestHooks:
    """The checks before a request, the headers and counters of its answer, and what is released at its end."""

    def __init__(
        self,
        entrance: access.Entrance,
        allowed: access.Access,
        bodies: BodyReader,
        stats: HttpStats,
        access_log: AccessLog | None,
        guard: PeerGuard | None,
        start: Callable[[], None],
        may_have_copies: bool,
    ) -> None:
        """`guard`: admits requests that peers pass on; `start`: begins to load models, with the first request at last.

        `may_have_copies`: each of several processes would load its own copy of the model, which is logged once.
        """
        self._entrance = entrance
        self._access = allowed
        self._bodies = bodies
        self._stats = stats
        self._access_log = access_log
        self._guard = guard
        self._start = start
        self._has_started = False  # of start(), which would look itself: one call less for each request
        self._may_have_copies = may_have_copies

    def begin(self) -> None:
        """Checks a request. Raises why it may not pass."""
        http_request, notes = current(request), current(g)
        if (visit := http_request.environ.pop(VISIT, None)) is not None:
            self._take_over(visit)
        if not self._has_started:
            self._start()
            self._has_started = True
        if self._may_have_copies and http_request.environ.get("wsgi.multiprocess"):
            self._may_have_copies = False
            log.warning("several worker processes: process %d loads its own copy of the model", os.getpid())
        if self._guard is not None:  # peers may have to answer what nobody here could after all: they need the request
            http_request.environ.pop(PARKS, None)
        notes.corosrv_is_busy = True
        notes.corosrv_began = time.monotonic()
        self._stats.begin_work()
        notes.corosrv_request_id = access.request_id(http_request)
        if self._access_log is not None and TRACE not in http_request.environ:
            self._access_log.begin(http_request.environ).is_ended_here = True
        view = current_app.view_functions.get(http_request.endpoint or "")
        is_open = http_request.method == "OPTIONS" or getattr(view, openapi.IS_OPEN, False)
        caller = None if self._guard is None else self._guard.admit(http_request.environ)
        if caller is not None or is_open:
            notes.corosrv_caller = caller or ""
            if caller is not None:
                self._take_passed(caller)
            return
        visit = Visit(notes.corosrv_request_id, notes.corosrv_began)
        try:
            self._entrance.admit(http_request, visit)
        finally:
            notes.corosrv_caller = visit.caller
            if visit.account is not None:
                notes.corosrv_account = visit.account
            if visit.flow is not None:
                notes.corosrv_flow = visit.flow

    def _take_passed(self, caller: str) -> None:
        """Takes a request that a peer has let in and counted. Raises KeyNotCounted, and Refused for a header."""
        notes = current(g)
        if (account := self._entrance.passed_on(caller, notes.get("corosrv_counts", False))) is not None:
            notes.corosrv_account = account
        if (flow := self._entrance.flow_of(current(request).environ)) is not None:
            notes.corosrv_flow = flow

    def _take_over(self, visit: Visit) -> NoReturn:
        """Goes on with a visit that the shortcut could not answer: raises why, for the handlers of errors."""
        notes = current(g)
        notes.corosrv_is_busy = True
        notes.corosrv_began = visit.began
        notes.corosrv_request_id = visit.request_id
        notes.corosrv_caller = visit.caller
        if visit.account is not None:
            notes.corosrv_account = visit.account
        error, visit.error = visit.error, None
        assert error is not None
        try:
            raise error
        finally:
            del error, visit  # which would hold this frame, and the request, until garbage is collected

    def end(self, error: BaseException | None) -> None:
        """Counts the request as ended; its stream may have begun."""
        if current(g).pop("corosrv_is_busy", False):
            self._stats.end_work()
        self._bodies.release(current(request))

    def complete(self, response: Response) -> Response:
        """Adds what every answer has."""
        http_request, notes = current(request), current(g)
        response.headers["X-Request-Id"] = notes.get("corosrv_request_id") or access.request_id(http_request)
        terms.add_header(response)
        account: KeyAccount | None = notes.get("corosrv_account")
        if account is not None and account.entry.has_limits and not notes.get("corosrv_trip"):
            response.headers.extend(account.headers())  # a peer has its own, of the requests that it counts
        self._access.allow(http_request, response)
        route = http_request.url_rule.rule if http_request.url_rule else "none"
        if isinstance(response, LateResponse):
            notes.pop("corosrv_is_busy", False)
            response.account = RequestAccount(self._stats, route, self._bodies.hand_over(http_request))
        else:
            self._stats.count_answer(route, response.status_code)
        if self._access_log is not None and (trace := http_request.environ.get(TRACE)) is not None:
            self._describe(self._access_log, trace, route, response)
        return response

    def _describe(self, log: AccessLog, trace: RequestTrace, route: str, response: Response) -> None:
        """Tells a request's trace what is known by now, and ends it with its answer where nobody else will."""
        visit = Visit(response.headers["X-Request-Id"], 0.0, account=current(g).get("corosrv_account"))
        trace.describe(visit, "" if route == "none" else route)
        if not trace.is_ended_here:
            return
        body = response.response

        def end() -> None:
            has_failed = isinstance(body, EventStream) and body.has_failed
            log.end(trace, response.status_code, None, access_log.ERROR if has_failed else access_log.COMPLETE)

        if isinstance(body, EventStream):
            body.on_close = end  # a stream's response is passed over when it is closed
        else:
            response.call_on_close(end)
