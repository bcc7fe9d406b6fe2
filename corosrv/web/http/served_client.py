"""Serves clients: reads their requests, has gunicorn's application run them, and sends the answers.

A client whose answer is not there yet needs no greenlet where there are many: `ServedClient` and `HttpExchange` hold
what is needed to go on. `ClientPool` bounds the clients that are served at once, parked ones among them.
"""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

import gevent
from gevent.pool import Group, Pool
from gunicorn.config import PostRequest, PreRequest
from gunicorn.http import wsgi
from gunicorn.http.errors import ParseException
from gunicorn.http.message import Request

from corosrv.web.http import access
from corosrv.web.http.access_log import CLIENT_GONE, COMPLETE, ERROR, AccessLog, RequestTrace
from corosrv.web.http.body_reader import PACED
from corosrv.web.http.connection import ClientLimits, Connection, Overloaded, TooSlow
from corosrv.web.http.listener import PatientSocket, TlsRelay
from corosrv.web.http.message import CLIENT_GONE as LEFT
from corosrv.web.http.message import HttpResponse, UnloggedResponse
from corosrv.web.http.reply import PARKS, Flood, LateBody
from corosrv.web.http.siblings import Siblings
from corosrv.web.http.sse import EventStream
from corosrv.web.http.terms import FROM_BATCH, FROM_CALLER

log = logging.getLogger("corosrv.http")

# Extra connections accepted over the limit, to refuse them politely or to answer /health.
RESERVE = 64
_RESERVE_PATIENCE = 0.5  # seconds
# Clients from which on one that waits for an answer gives its greenlet back: memory for a tenth of a millisecond.
MANY = 128


class ClientPool(Pool):  # type: ignore[misc]
    """gevent's pool, in which a client may keep its place while it has no greenlet.

    A greenlet keeps its stacks while it waits, 7 to 12 kilobytes, whatever it waits for. Belongs to the hub's thread.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.n_parked = 0  # clients that need no greenlet now
        self._parking: set[Any] = set()  # greenlets about to end whose clients keep their places

    def __len__(self) -> int:
        """Returns the number of clients, parked ones among them."""
        return super().__len__() + self.n_parked  # type: ignore[no-any-return]

    def park(self) -> None:
        """Keeps the place of the current greenlet's client, although the greenlet ends now, until it is resumed."""
        self._parking.add(gevent.getcurrent())

    def resume(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Serves a client that was parked on its place, in a new greenlet. Never waits."""
        greenlet = self.greenlet_class(serve, *arguments)
        self.n_parked -= 1
        Group.add(self, greenlet)
        greenlet.start()

    def _discard(self, greenlet: Any) -> None:
        if greenlet in self._parking:
            self._parking.remove(greenlet)
            self.n_parked += 1
            Group._discard(self, greenlet)
        else:
            super()._discard(greenlet)


class ServedClient:
    """Holds a client's connection, and its requests, of which the next is read when the last is answered."""

    __slots__ = ("address", "connection", "environ", "is_spare", "listener_name", "pool", "requests", "socket")

    def __init__(
        self,
        connection: Connection,
        socket: Any,
        address: Any,
        listener_name: Any,
        pool: ClientPool,
        is_spare: bool,
        environ: dict[str, str] | None = None,
    ) -> None:
        """`is_spare`: it was accepted over the limit.

        `environ`: another process has accepted it, and its next request, which has this in its environment, stays here.
        """
        self.connection = connection
        self.requests = connection.requests()
        self.socket = socket
        self.address = address
        self.listener_name = listener_name
        self.pool = pool
        self.is_spare = is_spare
        self.environ = environ

    def take_environ(self) -> dict[str, str] | None:
        """Returns what the next request has in its environment, and only that one."""
        environ, self.environ = self.environ, None
        return environ


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


class GunicornWorker(Protocol):
    """gunicorn's worker, as far as serving clients needs it."""

    alive: bool  # false once it is to stop
    cfg: Any  # gunicorn's settings
    log: Any  # gunicorn's
    wsgi: Any  # the application
    own_app: Callable[[], Any] | None  # makes what answers requests that worker processes make for a caller
    worker_connections: int
    limits: ClientLimits
    siblings: Siblings | None  # where it is one of several processes
    access_log: AccessLog | None  # where requests are logged or traced

    def count_request(self) -> None: ...


class Clients:
    """The clients of one serving process: reads their requests, has them run, and sends the answers.

    Belongs to the thread of the hub.
    """

    def __init__(self, worker: GunicornWorker) -> None:
        self._worker = worker
        self._cfg = worker.cfg
        self._connections: set[Connection | TlsRelay] = set()
        self._pools: list[ClientPool] = []
        self._hangs_up = False
        self._unread = Flood(log, "%d requests were refused: malformed, too slow, or too many clients")

    def make_pool(self) -> ClientPool:
        pool = ClientPool(self._worker.worker_connections + RESERVE)
        self._pools.append(pool)
        return pool

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def n_served(self) -> int:
        """The number of clients that are served, parked ones among them."""
        return sum(map(len, self._pools))

    def hang_up(self) -> None:
        """Ends the connections that wait for a request; the others end behind the answer that is under way."""
        self._hangs_up = True
        for connection in list(self._connections):
            connection.hang_up()

    def count(self) -> tuple[int, int]:
        """Counts the connections, and the greenlets that serve them."""
        n_connections = len(self._connections)
        return n_connections, n_connections - sum(pool.n_parked for pool in self._pools)

    @property
    def _is_full(self) -> bool:
        return len(self._connections) > self._worker.worker_connections

    def welcome(self, socket: Any, address: Any, listener_name: Any, pool: ClientPool) -> None:
        socket.setblocking(1)
        connection = Connection(self._cfg, socket, address, self._worker.limits)
        self._connections.add(connection)
        self._serve(ServedClient(connection, socket, address, listener_name, pool, is_spare=self._is_full))

    def take_over(self, raw: Any, address: Any, listener_name: Any, read_ahead: bytes, environ: dict[str, str]) -> None:
        """Serves a connection that another process has passed on. `environ`: what it says of the first request."""
        socket = PatientSocket(raw.family, raw.type, raw.proto, fileno=raw.detach())
        socket.setblocking(1)
        connection = Connection(self._cfg, socket, address, self._worker.limits, read_ahead)
        self._connections.add(connection)
        pool = self._pools[0]
        client = ServedClient(connection, socket, address, listener_name, pool, is_spare=self._is_full, environ=environ)
        pool.spawn(self._serve, client)

    def _pass_on(self, client: ServedClient, request: Request) -> bool:
        """Passes a connection to the process that its request belongs to; returns whether it is not served here."""
        if self._worker.siblings is None:
            return False
        if client.environ is not None:  # once: another process may see others
            return False
        owner = self._worker.siblings.owner_of(request)
        if owner is None:
            return False
        if isinstance(client.socket, ssl.SSLSocket):
            return self._relay(client, request, owner)
        if not self._worker.siblings.pass_on(owner, request, client.socket, client.address, client.listener_name):
            return False
        self._connections.discard(client.connection)
        client.socket.close()  # this copy of it: the other process has its own
        return True

    def _relay(self, client: ServedClient, request: Request, owner: str) -> bool:
        """Has another process serve a connection that stays here, to its end; returns whether that has. Waits.

        Raises OSError and Overloaded.
        """
        assert self._worker.siblings is not None
        relay = TlsRelay(client.socket, self._worker.limits.write)
        try:
            if not self._worker.siblings.pass_on(owner, request, relay.far, client.address, client.listener_name):
                return False
            self._connections.remove(client.connection)
            self._connections.add(relay)
            if self._hangs_up:
                relay.hang_up()
            relay.run()
        finally:
            self._connections.discard(relay)
            relay.close()
        client.connection.close()
        return True

    def _serve(self, client: ServedClient, late: HttpExchange | None = None) -> None:
        """Serves a client to its end, or until an answer is late: then it is called again with that exchange."""
        connection, is_parked = client.connection, False
        try:
            is_parked = self._answer_requests(client, late)
        except TimeoutError:
            connection.abort()  # it takes nothing, and would have the system keep what was meant for it
        except OSError as error:
            log.debug("a client left: %s", error)
        finally:
            if not is_parked:
                self._connections.discard(connection)
                connection.close(*([_RESERVE_PATIENCE] if client.is_spare or not self._worker.alive else []))

    def _answer_requests(self, client: ServedClient, late: HttpExchange | None) -> bool:
        """Sends the answer that was late, if there is one, and answers what follows. Returns whether it was parked."""
        try:
            if late is not None and not self._finish(late):
                return False
            for request in client.requests:
                if client.is_spare and not request.path.endswith("/health"):
                    raise Overloaded
                if self._pass_on(client, request):
                    return True
                exchange = self._begin(
                    client.listener_name, request, client.socket, client.address, client.take_environ()
                )
                if self._park(client, exchange):
                    return True
                if not self._finish(exchange):
                    return False
        except (ParseException, TooSlow, Overloaded) as error:
            self._unread.count()
            client.connection.refuse(error)
        except OSError:
            raise
        except Exception as error:  # a bug of ours or of the application's ends one connection, not the worker
            log.exception("a request could not be answered")
            client.connection.refuse(error)
        return False

    def _park(self, client: ServedClient, exchange: HttpExchange) -> bool:
        """Returns whether the client is served on when its answer is there; the current greenlet has to end then."""
        body = exchange.body
        if not isinstance(body, LateBody):
            return False
        if not body.on_ready(functools.partial(client.pool.resume, self._serve, client, exchange)):
            return False
        client.pool.park()
        if isinstance(exchange.answer, UnloggedResponse):
            exchange.answer.forget_request()
        return True

    def answer(self, listener_name: Any, request: Request, socket: Any, address: Any) -> bool:
        """Runs one request through the application; True when another may follow on this connection. Waits."""
        return self._finish(self._begin(listener_name, request, socket, address))

    def _begin(
        self, listener_name: Any, request: Request, sock: Any, addr: Any, more: dict[str, str] | None = None
    ) -> HttpExchange:
        """Runs one request through the application, whose answer is to be sent. Waits.

        `more`: what its WSGI environment has besides.
        """
        exchange = HttpExchange(request)
        try:
            if self._has_pre_request:
                self._cfg.pre_request(self._worker, request)
            is_logged = self._logs_requests
            response_class = HttpResponse if is_logged else UnloggedResponse
            answer, environ = wsgi.create(request, sock, addr, listener_name, self._cfg, response_class=response_class)
            exchange.answer = answer
            if more:
                environ.update(more)
            if is_logged:
                exchange.environ = environ
            environ["wsgi.multithread"] = True
            environ[PACED] = True
            if self._worker.access_log is not None:
                exchange.trace = self._worker.access_log.begin(environ)
                answer.is_counted = True
            if len(self._connections) > MANY:
                environ[PARKS] = True
            self._worker.count_request()
            if not self._worker.alive or not self._cfg.keepalive or self._is_full:
                answer.force_close()
            is_own = more is not None and (FROM_BATCH in more or FROM_CALLER in more)
            application = self._worker.own_app() if is_own and self._worker.own_app else self._worker.wsgi
            exchange.body = application(environ, answer.start_response)
        except BaseException:
            self._log_end(exchange, ERROR)
            raise
        return exchange

    def _finish(self, exchange: HttpExchange) -> bool:
        """Sends an answer; True when another request may follow on this connection. Waits."""
        answer = exchange.answer
        assert answer is not None
        end = ERROR
        try:
            if not self._worker.alive:
                answer.force_close()
            send(answer, exchange.body)
            end = _end_of(answer, exchange.body)
            return not self._hangs_up and not answer.should_close()
        except OSError:
            end = CLIENT_GONE
            raise
        finally:
            self._log_end(exchange, end)

    def _log_end(self, exchange: HttpExchange, end: str) -> None:
        answer, request = exchange.answer, exchange.request
        if self._worker.access_log is not None and exchange.trace is not None:
            # An application that raised has no status, and its client gets 500.
            has_status = answer is not None and answer.status is not None
            status, n_bytes = (answer.status_code, answer.sent) if answer is not None and has_status else (500, 0)
            self._worker.access_log.end(exchange.trace, status, n_bytes, end)
        if exchange.environ and self._has_access_log and answer is not None and answer.status is not None:
            self._worker.log.access(answer, request, access.redacted(exchange.environ), datetime.now() - exchange.began)
        if self._cfg.post_request is not PostRequest.default:
            self._cfg.post_request(self._worker, request, exchange.environ, answer)

    # Looked at for each request, and the same for all of a process.

    @cached_property
    def _has_pre_request(self) -> bool:
        """True where gunicorn's hook before requests does anything: its own writes a line for the debug level."""
        if self._cfg.pre_request is not PreRequest.default:
            return True
        error_log = getattr(self._worker.log, "error_log", None)
        return error_log is None or error_log.isEnabledFor(logging.DEBUG)

    @cached_property
    def _has_access_log(self) -> bool:
        return bool(getattr(self._worker.log, "access_log_enabled", True))  # a log of somebody else's may not say

    @cached_property
    def _logs_requests(self) -> bool:
        """True when the access log or the user's own hook looks at a request once more when it is over."""
        return self._has_access_log or self._cfg.post_request is not PostRequest.default


def _end_of(answer: HttpResponse, body: Any) -> str:
    """Returns how an answer that was sent has ended, for the access log."""
    is_stream = isinstance(body, EventStream)
    if answer.status_code == LEFT or (is_stream and body.is_abandoned):
        return CLIENT_GONE
    return ERROR if answer.is_cut_off or (is_stream and body.has_failed) else COMPLETE
