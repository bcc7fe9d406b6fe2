"""gunicorn's gevent worker with deadlines, a reserve for when it is full, and a stop that does not wait for the idle.

`gunicorn -k corosrv.web.http.front.Front` names it; corosrv.app turns a plain gevent worker into one.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from types import FrameType
from typing import Any, Protocol

import gevent
from gevent.event import Event
from gunicorn import sock as gunicorn_socket
from gunicorn.config import PostRequest, PreRequest
from gunicorn.http import wsgi
from gunicorn.http.errors import ParseException
from gunicorn.http.message import Request
from gunicorn.http2 import negotiation
from gunicorn.workers.ggevent import GeventWorker

from corosrv.base.processor import garbage_times
from corosrv.base.waits import awake_clock
from corosrv.contracts.jobs import State
from corosrv.web.http import access, worker_watch
from corosrv.web.http.access_log import CLIENT_GONE, COMPLETE, ERROR, AccessLog
from corosrv.web.http.body_reader import PACED
from corosrv.web.http.connection import ClientLimits, Connection, Overloaded, TooSlow
from corosrv.web.http.heap import FullCollections
from corosrv.web.http.listener import Certificates, Listener, PatientSocket
from corosrv.web.http.message import CLIENT_GONE as LEFT
from corosrv.web.http.message import HttpResponse, LateErrors, UnloggedResponse
from corosrv.web.http.reply import PARKS, Flood, LateBody
from corosrv.web.http.served_client import ClientPool, HttpExchange, ServedClient, send
from corosrv.web.http.siblings import Siblings
from corosrv.web.http.sse import EventStream
from corosrv.web.http.worker_watch import NEVER_STARTS, has_predecessors, let_stops_through

log = logging.getLogger("corosrv.http")

CONNECTIONS = 10_000
_GUNICORNS_CONNECTIONS = 1000  # what it takes when it is not told
# Extra connections accepted over the limit, to refuse them politely or to answer /health.
RESERVE = 64
_RESERVE_PATIENCE = 0.5  # seconds
# Clients from which on one that waits for an answer gives its greenlet back: memory for a tenth of a millisecond.
_MANY = 128
_LAST_CALL = 0.3  # seconds in which those who had connected before the stop are still let in, and answered
_HURRY = 2.5  # seconds that what goes on beside requests gets at a quick end
_READY_LOOK = 0.1  # seconds between two looks whether a new worker can take an old one's place
_HANGS = 1.0  # seconds of the processor between two heartbeats


class Ending(Protocol):
    """Work that goes on besides requests and has to end before the process does."""

    @property
    def is_ending(self) -> bool:
        """True when the worker has been told to stop and is still running."""

    def hurry(self) -> None:
        """Ends everything that still runs. Returns at once."""


class Front(GeventWorker):  # type: ignore[misc]
    """One serving process: accepts clients, and gives each a greenlet."""

    alive: bool
    booted: bool
    worker_connections: int
    limits = ClientLimits()
    state: Callable[[], State] = staticmethod(lambda: State.READY)  # of what it serves
    at_end: Callable[[], None] | None = None  # stops what it serves, where that does not stop before its clients
    siblings: Siblings | None = None  # where this is one of several processes
    access_log: AccessLog | None = None  # where requests are logged or traced
    _is_quitting = False
    _certificates: Certificates | None = None  # where it speaks TLS
    _hangs_up = False  # on clients whose last answer was sent, without a look whether they ask for more

    def init_process(self) -> None:
        self.harden()
        super().init_process()

    def harden(self) -> None:
        """Sets up what a plain gevent worker lacks. Call it in the process that serves, before it does."""
        if self.worker_connections == _GUNICORNS_CONNECTIONS:
            self.worker_connections = min(CONNECTIONS, worker_watch.raise_limit() // 2)
        if self.cfg.http_parser == "auto":
            # The one written in C, taken wherever it is installed, lets bare line feeds and folded fields pass.
            self.cfg.set("http_parser", "python")
        if "GEVENT_TRACK_GREENLET_TREE" not in os.environ:
            # With each greenlet gevent would keep the stack that spawned it: half a kilobyte of every stream.
            gevent.config.track_greenlet_tree = False
        # Each look at a setting goes through three calls, twenty times a request: from here on they are attributes.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        wsgi.WSGIErrorsWrapper = LateErrors
        self._connections: set[Connection] = set()
        self._pools: list[ClientPool] = []
        self._stopping = Event()
        self._used_at_beat = time.thread_time()
        self._full_collections = FullCollections()
        self.endings: list[Ending] = []
        self._unread = Flood(log, "%d requests were refused: malformed, too slow, or too many clients")

    def init_signals(self) -> None:
        super().init_signals()
        let_stops_through()

    def run(self) -> None:
        """Serves until a stop is asked for, then drains for at most `graceful_timeout`."""
        servers = [self._listen(listener) for listener in self.sockets]
        self._full_collections.take_over()
        # What logging does when a handler goes, after all else has gone, meets a lock of gevent's that is no more.
        atexit.register(logging._handlerList.clear)  # type: ignore[attr-defined]
        garbage_times.watch()
        if has_predecessors():
            self._wait_until_ready()
        for server in servers:
            server.start()
        if self.siblings is not None:
            self.siblings.start()
        while self.alive:
            self.notify()
            if self._certificates is not None:
                self._certificates.look()
            self._full_collections.look(len(self._connections))
            self._stopping.wait(1.0)
        if self.at_end is not None:  # others accept who comes; whoever came here is still served
            for server in servers:
                server.close()
        gevent.sleep(_LAST_CALL)
        for _ in range(3):  # turns of the hub, in which those are heard who came while the process stood still
            gevent.sleep(0)
        for server in servers:
            server.close()
        if self.at_end is not None:
            self.at_end()
        if self.siblings is not None:
            self.siblings.close()
        self._hangs_up = True
        for connection in list(self._connections):
            connection.hang_up()
        # By the monotonic clock: a wall clock that is set would end streams, or keep them.
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while (any(len(server.pool) for server in servers) or self._is_ending) and time.monotonic() < deadline:
            self.notify()
            gevent.sleep(0.1)
        for server in servers:
            server.stop(timeout=1)

    def _wait_until_ready(self) -> None:
        """Waits until this worker can serve; the old ones do meanwhile. Ends a process that never will be able to."""
        while self.alive and (state := self.state()) is not State.READY:
            if state is State.FAILED:
                self.log.error("this worker process cannot take another one's place: what it serves has failed")
                os._exit(NEVER_STARTS)
            self.notify()
            self._stopping.wait(_READY_LOOK)
        worker_watch.tell_ready(self)

    def notify(self) -> None:
        """Tells the master that this process serves, and the process's own clock."""
        awake_clock.beat()
        self._used_at_beat = time.thread_time()
        super().notify()

    def handle_abort(self, sig: int, frame: FrameType | None) -> None:
        """Ends a worker that hangs in a computation. One that was paused goes on: it will tell the master in time.

        A master with corosrv's settings aborts no paused worker; gunicorn's own does, and kills a silent one later.
        """
        if time.thread_time() - self._used_at_beat < _HANGS:
            self.notify()  # at once: the master may look again at once
            log.warning("gunicorn's master took a pause for a hang; serving on")
            return
        super().handle_abort(sig, frame)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._leave_unless_booted()
        super().handle_exit(sig, frame)
        self._stopping.set()

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        # Once: a terminal interrupts this process, and so does the master, which the terminal interrupts as well.
        self._leave_unless_booted()
        if not self._is_quitting:
            self._is_quitting = True
            gevent.spawn(self._quit, sig, frame)

    def _leave_unless_booted(self) -> None:
        """Ends a process that is still loading the application: nothing was accepted, and loading may take seconds."""
        if not self.booted:
            os._exit(0)

    def _quit(self, sig: int, frame: FrameType | None) -> None:
        for ending in self.endings:
            ending.hurry()
        deadline = time.monotonic() + _HURRY
        while self._is_ending and time.monotonic() < deadline:
            gevent.sleep(0.05)
        super().handle_quit(sig, frame)

    @property
    def _is_ending(self) -> bool:
        return any(ending.is_ending for ending in self.endings)

    def _listen(self, listener: Any) -> Listener:
        listener.setblocking(1)
        options: dict[str, Any] = {}
        if self.cfg.is_ssl:
            context = gunicorn_socket.ssl_context(self.cfg)
            self._certificates = Certificates(context, self.cfg.certfile, self.cfg.keyfile)
            options = {"ssl_context": context, "handshake_s": self.limits.head}
        pool = ClientPool(self.worker_connections + RESERVE)
        self._pools.append(pool)

        def handle(client: Any, address: Any) -> None:
            speaks_http2 = self.cfg.is_ssl and gunicorn_socket.is_http2_negotiated(client)
            if speaks_http2 or negotiation.prior_knowledge_allowed(self.cfg, address):
                self.handle(listener, client, address)
            else:
                self._welcome(client, address, listener.getsockname(), pool)

        return Listener(listener, handle, pool, **options)

    def count_clients(self) -> tuple[int, int]:
        """Counts the connections, and the greenlets that serve them."""
        n_connections = len(self._connections)
        return n_connections, n_connections - sum(pool.n_parked for pool in self._pools)

    @property
    def _is_full(self) -> bool:
        return len(self._connections) > self.worker_connections

    def _welcome(self, socket: Any, address: Any, listener_name: Any, pool: ClientPool) -> None:
        socket.setblocking(1)
        connection = Connection(self.cfg, socket, address, self.limits)
        self._connections.add(connection)
        self._serve(ServedClient(connection, socket, address, listener_name, pool, is_spare=self._is_full))

    def share_state(self, folder: str) -> None:
        """Passes requests that need a caller's state to the process that has it. `folder`: see Siblings."""
        if self.cfg.is_ssl:
            log.warning(
                "under TLS each worker process has its own stored responses, idempotency keys, resumable streams and "
                "groups: end TLS in a proxy, or use one worker process"
            )
            return
        self.siblings = Siblings(folder, self.cfg.workers, self._take_over, front=self.age)

    def _take_over(self, raw: Any, address: Any, listener_name: Any, read_ahead: bytes) -> None:
        """Serves a connection that another process has passed on."""
        socket = PatientSocket(raw.family, raw.type, raw.proto, fileno=raw.detach())
        socket.setblocking(1)
        connection = Connection(self.cfg, socket, address, self.limits, read_ahead)
        self._connections.add(connection)
        pool = self._pools[0]
        client = ServedClient(connection, socket, address, listener_name, pool, is_spare=self._is_full, is_passed=True)
        pool.spawn(self._serve, client)

    def _pass_on(self, client: ServedClient, request: Request) -> bool:
        """Passes a connection to the process that its request belongs to; returns whether it is not served here."""
        if self.siblings is None:
            return False
        if client.is_passed:  # once: another process may see others
            client.is_passed = False
            return False
        owner = self.siblings.owner_of(request)
        return owner is not None and self.siblings.pass_on(
            owner, request, client.socket, client.address, client.listener_name
        )

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
                connection.close(*([_RESERVE_PATIENCE] if client.is_spare or not self.alive else []))

    def _answer_requests(self, client: ServedClient, late: HttpExchange | None) -> bool:
        """Sends the answer that was late, if there is one, and answers what follows. Returns whether it was parked."""
        try:
            if late is not None and not self._finish(late):
                return False
            for request in client.requests:
                if client.is_spare and not request.path.endswith("/health"):
                    raise Overloaded
                if self._pass_on(client, request):
                    self._connections.discard(client.connection)
                    client.socket.close()  # this copy of it: the other process has its own
                    return True
                exchange = self._begin(client.listener_name, request, client.socket, client.address)
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

    def handle_request(self, listener_name: Any, req: Request, sock: Any, addr: Any) -> bool:
        """Runs one request through the application; True when another may follow on this connection. Waits."""
        return self._finish(self._begin(listener_name, req, sock, addr))

    def _begin(self, listener_name: Any, request: Request, sock: Any, addr: Any) -> HttpExchange:
        """Runs one request through the application, whose answer is to be sent. Waits."""
        exchange = HttpExchange(request)
        try:
            if self._has_pre_request:
                self.cfg.pre_request(self, request)
            is_logged = self._logs_requests
            response_class = HttpResponse if is_logged else UnloggedResponse
            answer, environ = wsgi.create(request, sock, addr, listener_name, self.cfg, response_class=response_class)
            exchange.answer = answer
            if is_logged:
                exchange.environ = environ
            environ["wsgi.multithread"] = True
            environ[PACED] = True
            if self.access_log is not None:
                exchange.trace = self.access_log.begin(environ)
                answer.is_counted = True
            if len(self._connections) > _MANY:
                environ[PARKS] = True
            self._count_request()
            if not self.alive or not self.cfg.keepalive or self._is_full:
                answer.force_close()
            exchange.body = self.wsgi(environ, answer.start_response)
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
            if not self.alive:
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
        if self.access_log is not None and exchange.trace is not None:
            # An application that raised has no status, and its client gets 500.
            has_status = answer is not None and answer.status is not None
            status, n_bytes = (answer.status_code, answer.sent) if answer is not None and has_status else (500, 0)
            self.access_log.end(exchange.trace, status, n_bytes, end)
        if exchange.environ and self._has_access_log and answer is not None and answer.status is not None:
            self.log.access(answer, request, access.redacted(exchange.environ), datetime.now() - exchange.began)
        if self.cfg.post_request is not PostRequest.default:
            self.cfg.post_request(self, request, exchange.environ, answer)

    # Looked at for each request, and the same for all of a process.

    @cached_property
    def _has_pre_request(self) -> bool:
        """True where gunicorn's hook before requests does anything: its own writes a line for the debug level."""
        error_log = getattr(self.log, "error_log", None)
        return (
            self.cfg.pre_request is not PreRequest.default or error_log is None or error_log.isEnabledFor(logging.DEBUG)
        )

    @cached_property
    def _has_access_log(self) -> bool:
        return bool(getattr(self.log, "access_log_enabled", True))  # a log of somebody else's may not say

    @cached_property
    def _logs_requests(self) -> bool:
        """True when the access log or the user's own hook looks at a request once more when it is over."""
        return self._has_access_log or self.cfg.post_request is not PostRequest.default

    def _count_request(self) -> None:
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False


def _end_of(answer: HttpResponse, body: Any) -> str:
    """Returns how an answer that was sent has ended, for the access log."""
    is_stream = isinstance(body, EventStream)
    if answer.status_code == LEFT or (is_stream and body.is_abandoned):
        return CLIENT_GONE
    return ERROR if answer.is_cut_off or (is_stream and body.has_failed) else COMPLETE


def adopt(limits: ClientLimits) -> Front | None:
    """Tells this process's Front its limits, before it serves, and makes one of a plain gevent worker first.

    None where this process is no gevent worker of gunicorn's.

    gunicorn tells nobody which worker it runs. But the worker has put its own methods behind the signals, and loads
    the application after that.
    """
    worker: Any = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if type(worker) is GeventWorker:
        worker.__class__ = Front
        worker.harden()
        for number in (signal.SIGQUIT, signal.SIGINT):
            signal.signal(number, worker.handle_quit)
        signal.signal(signal.SIGTERM, worker.handle_exit)
        signal.signal(signal.SIGABRT, worker.handle_abort)
        signal.siginterrupt(signal.SIGTERM, False)
    if not isinstance(worker, Front):
        return None
    worker.limits = limits
    return worker
