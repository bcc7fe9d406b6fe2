"""Serves one engine to fronts, in a process of its own: accepts them, loads the model, ends after the last has left."""

from __future__ import annotations

import _socket
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import gevent
import msgspec
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from corosrv.base.errors import ModelFailed
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.models.engine import Engine
from corosrv.models.engine.process.connector import peer_of
from corosrv.models.engine.process.messages import (
    AdapterScales,
    BanTasks,
    EngineFailed,
    EngineLoaded,
    EngineLoading,
    EngineRelease,
    LoopCounters,
)
from corosrv.models.engine.process.session import FrontSession

log = logging.getLogger("corosrv.engine")

LINGER = 5.0  # seconds without a front after which the process ends
FIRST_FRONT = 60.0  # seconds in which the first front must come
_OFTEN, _SELDOM = 0.1, 1.0  # seconds between two looks at the counters, while the engine works and while it rests
_LOADING = 0.25  # seconds between two words of how far the load is
_CLOSE_S = 10.0  # seconds in which the engine has to end: a step, or the loading of a model
_SETTLED = 0.005  # seconds after which a step has been counted that something began or ended in
_READ = 1  # what a watcher of gevent watches for


class EngineHost:
    """Owns an engine, the socket that fronts connect to, and their sessions. Belongs to the thread of one hub."""

    def __init__(
        self,
        engine: Engine,
        listener: _socket.socket,
        digest: str,
        name: str,
        on_use: Callable[[], None] = lambda: None,
    ) -> None:
        """`name`: of the model, for the log. `on_use`: called again and again while the engine is used."""
        self.engine = engine
        self.digest = digest
        self._name = name
        self._listener = listener
        listener.setblocking(False)
        self._sessions: dict[FrontSession, None] = {}
        self._news = Event()  # a front has come or left
        self._changed = Event()  # something began or ended in the engine
        self._state: EngineLoaded | EngineFailed | None = None
        self._created = int(time.time())
        self._suspects = BoundedSemaphore(1)
        self._on_use = on_use
        self._bans: dict[bytes, float] = {}  # until when jobs are refused, by their fingerprints
        self._released_at = -LINGER
        self.scales: AdapterScales | None = None  # of adapters, once somebody has set them

    def run(self) -> None:
        """Returns when no front needs the engine any more. Waits, for a while also for the end of the engine."""
        accepting = gevent.get_hub().loop.io(self._listener.fileno(), _READ)
        accepting.start(self._accept)
        gevent.spawn(self._load)
        gevent.spawn(self._tell_progress)
        gevent.spawn(self._tell_counters)
        try:
            self._wait_for_end()
        finally:
            accepting.stop()
            accepting.close()
            self._listener.close()  # whoever connects now finds nobody, and starts another process
            log.info("model %s: no front needs the engine any more", self._name)
            has_ended = False
            with gevent.Timeout(_CLOSE_S, False):  # a file may never come, from which a model is loaded
                gevent.get_hub().threadpool.apply(self.engine.close)
                has_ended = True
            if not has_ended:
                log.error("model %s: the engine does not end, and its process ends without it", self._name)

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + FIRST_FRONT
        while self._sessions or time.monotonic() < deadline:
            self._news.clear()
            if self._sessions:
                self._news.wait()
                now = time.monotonic()
                lingers = not isinstance(self._state, EngineFailed) and now - self._released_at >= LINGER
                deadline = now + (LINGER if lingers else 0)
            else:
                self._news.wait(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:  # it has left, or there is no descriptor left: it is tried again
            return
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        if peer_of(connection) != os.geteuid():
            connection.close()
            return
        session = FrontSession(self, connection)
        self._sessions[session] = None
        self._news.set()
        gevent.spawn(self._serve, session)

    def _serve(self, session: FrontSession) -> None:
        try:
            session.serve()
        except Exception:  # of one front; the others are served on
            log.exception("a front of model %s was cut off", self._name)
        finally:
            session.close()
            self._sessions.pop(session, None)
            self._news.set()

    def _load(self) -> None:
        try:
            self.engine.open()
            self._state = EngineLoaded(self.engine.info, self.engine.settings.slots, self._created)
        except ModelFailed as error:
            self._state = EngineFailed(str(error))
        except Exception as error:
            log.exception("the engine could not start")
            self._state = EngineFailed(f"the engine could not start: {type(error).__name__}")
        for session in list(self._sessions):
            session.tell_state()

    @property
    def state(self) -> EngineLoaded | EngineFailed | None:
        """Says whether the model is loaded or cannot be; None while it is being loaded."""
        if isinstance(self._state, EngineLoaded):
            return msgspec.structs.replace(self._state, stats=self.engine.stats())
        return self._state

    def note_change(self) -> None:
        """Tells the fronts of the counters soon: something began or ended."""
        self._changed.set()

    def tell_ban(self, ban: BanTasks) -> None:
        """Tells all fronts, also those that come, what engines have died of."""
        if ban.fingerprint not in self._bans:
            self._bans[ban.fingerprint] = time.monotonic() + ban.seconds
            for session in list(self._sessions):
                session.send(ban)

    @property
    def bans(self) -> Iterable[BanTasks]:
        """The bans that fronts which come are told."""
        now = time.monotonic()
        return [BanTasks(fingerprint, until - now) for fingerprint, until in self._bans.items() if until > now]

    def set_adapters(self, scales: Mapping[int, float]) -> None:
        """Sets the scales of adapters, and tells all fronts, also those that come. Raises Refused."""
        self.engine.set_adapters(scales)
        number = 1 if self.scales is None else self.scales.number + 1
        self._tell_scales(AdapterScales(number, [adapter.scale for adapter in self.engine.adapters()]))

    def take_scales(self, scales: AdapterScales) -> None:
        """Sets the scales that a front knows of the engine before, unless later ones are set. Raises Refused."""
        if self.scales is None or scales.number > self.scales.number:
            self.engine.set_adapters(dict(enumerate(scales.scales)))
            self._tell_scales(scales)

    def _tell_scales(self, scales: AdapterScales) -> None:
        self.scales = scales
        for session in list(self._sessions):
            session.send(scales)

    def release_if_idle(self) -> bool:
        """Asks all fronts to leave, unless something runs; returns whether it did. The process ends with the last."""
        stats = self.engine.stats() if isinstance(self._state, EngineLoaded) else None
        if stats is None or stats.running or stats.waiting:
            return False
        self._released_at = time.monotonic()
        for session in list(self._sessions):
            session.send(EngineRelease())
        return True

    @contextlib.contextmanager
    def alone_among_suspects(self) -> Iterator[None]:
        """Waits until no other task runs that the engine may die of, whichever front it is of."""
        with self._suspects:
            yield

    def _tell_progress(self) -> None:
        while self._state is None:
            for session in list(self._sessions):
                session.send(EngineLoading(self.engine.load_progress))
            gevent.sleep(_LOADING)

    def _tell_counters(self) -> None:
        told: DecodeStats | None = None
        told_at = 0.0
        while True:
            stats = self.engine.stats()
            now = time.monotonic()
            if stats is not None and (stats != told or now - told_at >= _SELDOM):
                if stats != told:
                    self._on_use()
                told, told_at = stats, now
                for session in list(self._sessions):
                    session.send(LoopCounters(stats))
            is_busy = stats is not None and (stats.running or stats.waiting)
            self._changed.clear()
            if self._changed.wait(_OFTEN if is_busy else _SELDOM):
                gevent.sleep(_SETTLED)
