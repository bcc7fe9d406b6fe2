"""Holds what serving a client needs from one request to the next, also while no greenlet serves it."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from gunicorn.http import wsgi
from gunicorn.http.message import Request

from corosrv.web.http.client_pool import ClientPool
from corosrv.web.http.connection import Connection
from corosrv.web.http.message import HttpResponse
from corosrv.web.http.sse import EventStream

log = logging.getLogger("corosrv.http")


class ServedClient:
    """Holds a client's connection, and its requests, of which the next is read when the last is answered."""

    __slots__ = ("address", "connection", "is_spare", "listener_name", "pool", "requests", "socket")

    def __init__(
        self,
        connection: Connection,
        socket: Any,
        address: Any,
        listener_name: Any,
        pool: ClientPool,
        is_spare: bool,
    ) -> None:
        """`is_spare`: it was accepted over the limit."""
        self.connection = connection
        self.requests = connection.requests()
        self.socket = socket
        self.address = address
        self.listener_name = listener_name
        self.pool = pool
        self.is_spare = is_spare


class HttpExchange:
    """Holds one request on its way through the application, and what is known of its answer."""

    __slots__ = ("answer", "began", "body", "environ", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.began = datetime.now()
        self.answer: HttpResponse | None = None
        self.body: Any = ()  # what the application has returned
        self.environ: dict[str, Any] = {}  # where it is still needed at the end


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
        answer.force_close()
    finally:
        if hasattr(body, "close"):
            body.close()
