"""Asks an upstream something small, in little time: whether it is well, what it serves, to abort a request."""

from __future__ import annotations

from typing import Protocol

import gevent

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import ForwardRequest, Headers
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Exchange, ExchangeLimits
from corosrv.fleet.upstreams.failures import UpstreamDown, UpstreamSilent

TIME_LIMIT = 2.0  # seconds that one answer may take
MAX_ANSWER = 4 << 20  # bytes


class Addressee(Protocol):
    """Stands for the upstream that is asked."""

    def path(self, path: str) -> str:
        """Returns the path of a request on this upstream."""

    def headers(self, headers: Headers = ()) -> Headers:
        """Returns the headers of a request to this upstream."""


def ask_shortly(upstream: Addressee, connections: UpstreamConnections, request: ForwardRequest) -> tuple[int, bytes]:
    """Returns the status and the body of the answer. Waits, TIME_LIMIT seconds at most.

    Raises CorosrvError: UpstreamSilent where no answer has come in time.
    """
    exchange = Exchange(connections, ExchangeLimits(TIME_LIMIT, TIME_LIMIT))
    body = bytearray()
    late = UpstreamSilent(f"it did not answer within {TIME_LIMIT:g} s")
    try:
        with gevent.Timeout(TIME_LIMIT, late):
            head = exchange.ask(upstream.path(request.path), request, upstream.headers(request.headers))
            for piece in exchange.pieces():
                body += piece
                if len(body) > MAX_ANSWER:
                    raise CorosrvError(f"its answer is longer than {MAX_ANSWER >> 20} MiB")
    except UpstreamSilent as error:
        if exchange.is_sent or connections.is_numeric:
            raise
        raise UpstreamDown(str(error)) from None  # perhaps its name was not found yet, which says nothing of it
    finally:
        exchange.close(is_whole=False)
    return head.status, bytes(body)
