"""gunicorn's gevent worker with deadlines, a reserve for when it is full, and a stop that does not wait for the idle.

`gunicorn -k corosrv.web.http.front.Front` names it; corosrv.app turns a plain gevent worker into one.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
from collections.abc import Callable
from importlib import metadata
from types import FrameType
from typing import Any, Protocol

import gevent
from gevent.event import Event
from gunicorn import sock as gunicorn_socket
from gunicorn.http import wsgi
from gunicorn.http.message import Request
from gunicorn.http2 import negotiation
from gunicorn.workers.ggevent import GeventWorker

from corosrv.base.processor import garbage_times
from corosrv.base.waits import awake_clock
from corosrv.contracts.jobs import State
from corosrv.web.http import worker_watch
from corosrv.web.http.access_log import AccessLog
from corosrv.web.http.connection import ClientLimits
from corosrv.web.http.heap import FullCollections
from corosrv.web.http.listener import Certificates, Listener
from corosrv.web.http.message import LateErrors
from corosrv.web.http.served_client import Clients
from corosrv.web.http.siblings import Siblings
from corosrv.web.http.worker_watch import NEVER_STARTS, has_predecessors, let_stops_through

log = logging.getLogger("corosrv.http")

CONNECTIONS = 10_000
_GUNICORNS_CONNECTIONS = 1000  # what it takes when it is not told
_LAST_CALL = 0.3  # seconds in which those who had connected before the stop are still let in, and answered
_HURRY = 2.5  # seconds that what goes on beside requests gets at a quick end
_READY_LOOK = 0.1  # seconds between two looks whether a new worker can serve
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
    own_app: Callable[[], Any] | None = (
        None  # makes what answers requests of other processes, whose paths have no prefix
    )
    _is_quitting = False
    _certificates: Certificates | None = None  # where it speaks TLS

    def init_process(self) -> None:
        self.harden()
        super().init_process()

    def patch(self) -> None:
        """Patches the standard library, and looks once for listeners of gevent's among the installed packages.

        gevent looks for them with each module that it patches: half a second of the processor with 150 packages.
        """
        find = metadata.entry_points
        metadata.entry_points = find().select
        try:
            super().patch()
        finally:
            metadata.entry_points = find

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
        self.clients = Clients(self)
        self._stopping = Event()
        self._used_at_beat = time.thread_time()
        self._full_collections = FullCollections()
        self.endings: list[Ending] = []

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
        is_next = has_predecessors()
        if is_next or (self.siblings is not None and self.age > self.cfg.workers):
            self._wait_while_starting()
        if is_next:
            self._take_over()
        for server in servers:
            server.start()
        if self.siblings is not None:
            self.siblings.start()
        while self.alive:
            self.notify()
            if self._certificates is not None:
                self._certificates.look()
            self._full_collections.look(len(self.clients))
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
        self.clients.hang_up()
        # By the monotonic clock: a wall clock that is set would end streams, or keep them.
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while (self.clients.n_served or self._is_ending) and time.monotonic() < deadline:
            self.notify()
            gevent.sleep(0.1)
            self.clients.hang_up()  # also on those that had only just connected
        for server in servers:
            server.stop(timeout=1)

    def _wait_while_starting(self) -> None:
        """Waits while what this worker serves is loaded; the ones before it, or beside it, serve meanwhile."""
        while self.alive and self.state() is State.STARTING:
            self.notify()
            self._stopping.wait(_READY_LOOK)

    def _take_over(self) -> None:
        """Has the workers before this one stop; ends this process where what it serves has failed."""
        if self.state() is State.FAILED:
            self.log.error("this worker process cannot take another one's place: what it serves has failed")
            os._exit(NEVER_STARTS)
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
            log.warning("gunicorn's master mistook a pause of this process for a hang; it goes on serving")
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
        pool = self.clients.make_pool()

        def handle(client: Any, address: Any) -> None:
            speaks_http2 = self.cfg.is_ssl and gunicorn_socket.is_http2_negotiated(client)
            if speaks_http2 or negotiation.prior_knowledge_allowed(self.cfg, address):
                self.handle(listener, client, address)
            else:
                self.clients.welcome(client, address, listener.getsockname(), pool)

        return Listener(listener, handle, pool, **options)

    def share_state(self, folder: str) -> None:
        """Passes requests that need a caller's state to the process that has it. `folder`: see Siblings.

        Twice is harmless.
        """
        if self.siblings is not None:
            return
        self.siblings = Siblings(folder, self.cfg.workers, self.clients.take_over, front=self.age)

    def handle_request(self, listener_name: Any, req: Request, sock: Any, addr: Any) -> bool:
        """Runs one request through the application; True when another may follow on this connection. Waits."""
        return self.clients.answer(listener_name, req, sock, addr)

    def count_request(self) -> None:
        """Counts a request, and stops the process behind the last one that it may serve."""
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False


def adopt(limits: ClientLimits) -> Front | None:
    """Tells this process's Front its limits, before it serves, and makes one of a plain gevent worker first.

    None where this process is no gevent worker of gunicorn's.
    """
    worker = worker_watch.serving_worker()
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
