"""Lets requests in, whether Flask answers them or not, and tells who counts, logs and traces them of their ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from corosrv.contracts.jobs.terms import TRACE
from corosrv.web.accounts import Accounts
from corosrv.web.http import terms
from corosrv.web.http.access import Access, request_id
from corosrv.web.http.access_log import AccessLog, RequestTrace
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import VISIT, AnyRequest, BareRequest, Visit
from corosrv.web.http.metrics import HttpStats


class Gate:
    """The checks of every request of a server, and what every answer has; see corosrv.gateway.forwarding.direct."""

    def __init__(
        self,
        stats: HttpStats,
        bodies: BodyReader,
        access: Access,
        accounts: Accounts,
        access_log: AccessLog | None,
        start: Callable[[], None],
    ) -> None:
        """`start`: starts the server, with its first request at the latest."""
        self._stats = stats
        self._bodies = bodies
        self._access = access
        self._accounts = accounts
        self._access_log = access_log
        self._start = start

    def open(self, request: BareRequest) -> Visit | None:
        """Begins a visit, which is to be left or to get an error; None where Flask has to begin it.

        It is in the environment from now on, where `Server` finds it if Flask has to answer it after all.
        """
        environ = request.environ
        if self._access_log is not None and TRACE not in environ:
            return None  # its trace ends with Flask's response
        self._start()
        self._stats.begin_work()
        visit = environ[VISIT] = Visit(request_id(request), time.monotonic())
        return visit

    def admit(self, request: AnyRequest, visit: Visit) -> None:
        """Lets a visitor in. May wait while keys are read again; raises Forbidden, Unauthorized and LimitReached."""
        owner = request.environ.get(terms.FROM_BATCH)
        if owner is None:
            visit.caller, visit.account = self._access.check(request)
        else:
            visit.caller, visit.account = owner, self._accounts.account_of(owner)
        if visit.account is not None:
            visit.account.admit(request.environ["REQUEST_METHOD"])

    def headers(self, visit: Visit) -> list[tuple[str, str]]:
        """Returns what an answer gets besides its own headers."""
        headers = [("X-Request-Id", visit.request_id)]
        if visit.account is not None and visit.account.entry.has_limits:
            headers += visit.account.headers()
        return headers

    def leave(self, request: BareRequest, visit: Visit, route: str, status: int) -> None:
        """Ends a visit that was answered; its stream may have begun. `status` 0: it was not."""
        environ = request.environ
        environ.pop(VISIT, None)
        self._stats.end_work()
        self._bodies.release(request)
        if status:
            self._stats.count_answer(route, status)
            if (trace := environ.get(TRACE)) is not None:
                describe(trace, visit, route)


def describe(trace: RequestTrace, visit: Visit, route: str) -> None:
    """Tells a request's trace what is known of it by the time of its answer."""
    trace.id, trace.route = visit.request_id, route
    trace.key = "" if visit.account is None else visit.account.entry.name
