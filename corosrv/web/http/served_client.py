"""Holds what serving a client needs from one request to the next, also while no greenlet serves it.

`ClientPool` bounds the clients that are served at once, those included whose greenlet ended until their answer comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import gevent
from gevent.pool import Group, Pool
from gunicorn.http import wsgi
from gunicorn.http.message import Request

from corosrv.web.http.access_log import RequestTrace
from corosrv.web.http.connection import Connection
from corosrv.web.http.message import HttpResponse
from corosrv.web.http.sse import EventStream

log = logging.getLogger("corosrv.http")


class ClientPool(Pool):  # type: ignore[misc]
    """gevent's pool, in which a client may keep its place while it has no greenlet.

    A greenlet keeps its stacks while it waits, 7 to 12 kilobytes, whatever it waits for. Belongs to the hub's thread.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._n_parked = 0
        self._parking: set[Any] = set()  # greenlets about to end whose clients keep their places

    def __len__(self) -> int:
        """Returns the number of clients, parked ones among them."""
        return super().__len__() + self._n_parked  # type: ignore[no-any-return]

    @property
    def n_parked(self) -> int:
        """The number of clients that need no greenlet now."""
        return self._n_parked

    def park(self) -> None:
        """Keeps the place of the current greenlet's client, although the greenlet ends now, until it is resumed."""
        self._parking.add(gevent.getcurrent())

    def resume(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Serves a client that was parked on its place, in a new greenlet. Never waits."""
        greenlet = self.greenlet_class(serve, *arguments)
        self._n_parked -= 1
        Group.add(self, greenlet)
        greenlet.start()

    def _discard(self, greenlet: Any) -> None:
        if greenlet in self._parking:
            self._parking.remove(greenlet)
            self._n_parked += 1
            Group._discard(self, greenlet)
        else:
            super()._discard(greenlet)


class ServedClient:
    """Holds a client's connection, and its requests, of which the next is read when the last is answered."""

    __slots__ = ("address", "connection", "is_passed", "is_spare", "listener_name", "pool", "requests", "socket")

    def __init__(
        self,
        connection: Connection,
        socket: Any,
        address: Any,
        listener_name: Any,
        pool: ClientPool,
        is_spare: bool,
        is_passed: bool = False,
    ) -> None:
        """`is_spare`: it was accepted over the limit. `is_passed`: another process has, and its request stays here."""
        self.connection = connection
        self.requests = connection.requests()
        self.socket = socket
        self.address = address
        self.listener_name = listener_name
        self.pool = pool
        self.is_spare = is_spare
        self.is_passed = is_passed


class HttpExchange:
    """Holds one request on its way through the application, and what is known of its answer."""

    __slots__ = ("answer", "began", "body", "environ", "request", "trace")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.began = datetime.now()
        self.answer: HttpResponse | None = None
        self.body: Any = ()  # what the application has returned
        self.environ: dict[str, Any] = {}  # where it is still needed at the end
        self.trace: RequestTrace | None = None  # where requests are logged or traced


def send(answer: HttpResponse, body: Any) -> None:
    """Sends what an application has returned, to its end, and closes it. Waits; raises OSError."""
    try:
        if isinstance(body, wsgi.FileWrapper):
            answer.write_file(body)
        elif isinstance(body, EventStream):
            body.send_all(answer.write)
        else:
            for piece in body:
                answer.write(piece)
        answer.close()
    except OSError:
        raise
    except Exception:  # a bug of the application's, whose answer has begun: it can only be cut off
        if not answer.headers_sent:
            raise
        log.exception("an answer could not be finished")
        answer.is_cut_off = True
        answer.force_close()
    finally:
        if hasattr(body, "close"):
            body.close()
