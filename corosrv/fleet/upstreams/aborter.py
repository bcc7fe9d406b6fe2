"""Tells an upstream, by its abort endpoint, that requests are of no use any more."""

from __future__ import annotations

import logging

import gevent
from gevent import Greenlet

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import ForwardRequest
from corosrv.fleet.upstreams.abort import ABORT_PATH, abort_body
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Addressee, ask_shortly

log = logging.getLogger("corosrv.upstreams")

MAX_RUNNING = 256  # abort requests to one upstream at once; beyond that the closed connection has to suffice
_HEADERS = (("Content-Type", "application/json"),)


class Aborter:
    """Sends the abort requests of one upstream, each in a greenlet that ends in 2 s."""

    def __init__(self, id: str, upstream: Addressee, url: str) -> None:
        self.n_sent = 0  # that the upstream has taken
        self.n_failed = 0
        self._id = id
        self._upstream = upstream
        self._connections = UpstreamConnections(url, 0)
        self._running: dict[Greenlet, None] = {}

    def abort(self, request_id: str) -> None:
        """Has the request with this id aborted. Never waits."""
        if len(self._running) >= MAX_RUNNING:
            self.n_failed += 1
            return
        sending = gevent.spawn(self._send, request_id)
        self._running[sending] = None
        sending.rawlink(self._running.pop)

    def wait(self, timeout: float) -> None:
        """Waits until every request was sent, `timeout` seconds at most."""
        gevent.joinall(list(self._running), timeout=timeout)

    def _send(self, request_id: str) -> None:
        request = ForwardRequest(path=ABORT_PATH, headers=_HEADERS, body=abort_body(request_id))
        try:
            status, _ = ask_shortly(self._upstream, self._connections, request)
        except CorosrvError as error:
            self._fail(str(error))
            return
        if status < 400:
            self.n_sent += 1
        else:
            self._fail(f"it answered {status}")

    def _fail(self, words: str) -> None:
        self.n_failed += 1
        if self.n_failed == 1:  # the metrics count the others
            log.warning("upstream %s did not take a request to %s: %s", self._id, ABORT_PATH, words)
