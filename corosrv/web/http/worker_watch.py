"""The process around the server: hung workers, new ones, stop signals, open files, addresses, and logs as JSON.

gunicorn's master is told which workers hang: those that are silent although they could run. On SIGHUP it ends the old
ones when the new ones are ready; a new master (SIGUSR2) accepts nobody before. A signal to stop that comes before the
handlers are in place is kept for later (`let_stops_through`). The limit on open files bounds the clients.
JsonLogger makes lines of JSON of what gunicorn's master, workers and access log say.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger
from gunicorn.workers.base import Worker

from corosrv.base.json_log import JsonFormatter

NEVER_STARTS = 4  # gunicorn's own exit status of an app that cannot be loaded: with any other it tries for ever
STOPS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))


def let_stops_through() -> None:
    """Delivers the signals that were held back; call it once the handlers are in place. Twice is harmless."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def serving_worker() -> Any:
    """Returns the worker of gunicorn's that this process is, of any kind; None elsewhere, as in its master.

    gunicorn tells nobody which worker it runs. But the worker has put its own methods behind the signals, and loads
    the application after that.
    """
    worker = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return worker if isinstance(worker, Worker) else None


_PLENTY = 2**20


def raise_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _PLENTY if hard == resource.RLIM_INFINITY else hard


def unresolvable(host: str) -> str | None:
    """Returns why no address is known for a host; None where one is."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def fault(host: str, port: int) -> str | None:
    """Returns why no server could listen there now; None where one could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def certificate_fault(certfile: str, keyfile: str | None = None) -> str | None:
    """Returns why a server could not use a certificate and its key; None where it could."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=lambda: "")
    except ssl.SSLError as error:
        reasons = {
            "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
            "BAD_DECRYPT": "the key is encrypted",
        }
        reason = reasons.get(error.reason or "", "they hold no certificate and key in PEM")
        return f"{' and '.join(filter(None, (certfile, keyfile)))}: {reason}"
    except OSError as error:
        return f"{' or '.join(filter(None, (certfile, keyfile)))} cannot be read: {error.strerror}"
    return None


class JsonLogger(Logger):  # type: ignore[misc]
    """A logger for gunicorn in JSON: `gunicorn --logger-class corosrv.web.http.worker_watch.JsonLogger`."""

    def setup(self, cfg: Any) -> None:
        """Sets the handlers up as gunicorn does, and then their form."""
        super().setup(cfg)
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            handler.setFormatter(JsonFormatter())


_TICK = 2.0  # seconds that one look counts at most; the master looks every second
_STOPPED = frozenset("tT")  # in /proc: by a signal, or by a debugger


class Silence:
    """Counts the seconds for which workers have sent no heartbeat although they and the master could run.

    gunicorn subtracts two clock readings, and so kills a worker that was paused together with its master the moment
    both wake. Here a look counts no more than the usual time between two looks, and nothing for a stopped worker.
    """

    def __init__(self) -> None:
        self._looked = 0.0
        self._silent: dict[int, tuple[float, float]] = {}  # by pid: the last heartbeat, and the seconds counted since

    def look(self, now: float, heartbeats: dict[int, float], stopped: set[int]) -> dict[int, float]:
        """Returns the seconds of silence of each worker, by its pid."""
        tick = min(now - self._looked, _TICK)
        self._looked = now
        self._silent = {
            pid: (heartbeat, self._seconds(pid, heartbeat, 0.0 if pid in stopped else tick))
            for pid, heartbeat in heartbeats.items()
        }
        return {pid: seconds for pid, (_, seconds) in self._silent.items()}

    def _seconds(self, pid: int, heartbeat: float, tick: float) -> float:
        last, seconds = self._silent.get(pid, (None, 0.0))
        return seconds + tick if heartbeat == last else 0.0


class WorkerWatch:
    """Takes the place of `Arbiter.murder_workers`. Belongs to gunicorn's master."""

    def __init__(self, arbiter: Any) -> None:
        self._arbiter = arbiter
        self._silence = Silence()

    def kill_hung(self) -> None:
        """Aborts workers that were silent for longer than gunicorn's `timeout`, and at the next look kills them."""
        if not self._arbiter.timeout:
            return
        heartbeats = self._heartbeats()
        stopped = {pid for pid in heartbeats if _is_stopped(pid)}
        for pid, seconds in self._silence.look(time.monotonic(), heartbeats, stopped).items():
            if seconds > self._arbiter.timeout:
                self._kill(pid, self._arbiter.WORKERS[pid])

    def _heartbeats(self) -> dict[int, float]:
        heartbeats = {}
        for pid, worker in list(self._arbiter.WORKERS.items()):
            with suppress(OSError, ValueError):  # it has ended, and its file is closed
                heartbeats[pid] = worker.tmp.last_update()
        return heartbeats

    def _kill(self, pid: int, worker: Any) -> None:
        if worker.aborted:
            self._arbiter.kill_worker(pid, signal.SIGKILL)
            return
        self._arbiter.log.critical("WORKER TIMEOUT (pid:%s)", pid)
        worker.aborted = True
        self._arbiter.kill_worker(pid, signal.SIGABRT)


_OLD_MASTER = "GUNICORN_PID"  # the variable that names the master which has started this one, while that lives
_IS_READY = 0o700  # the mode of a worker's heartbeat file, which is nobody else's, once it is ready; 0600 before
_IS_REPLACED = 0o500  # the mode of the file of a worker that is told to end because others serve
_READY_WITHIN = 1800.0  # seconds in which new workers have to load their models
_LOOK = 0.1  # seconds between two looks at them


class _NewWorkersFailed(Exception):
    """The new workers ended before they were ready."""


class WorkerReplacement:
    """Takes the place of `Arbiter.reload`: the old workers serve until the new ones are ready, or for good.

    Belongs to gunicorn's master. A new worker finds `is_replacement` in its copy of this class.
    """

    is_replacement = False

    def __init__(self, arbiter: Any) -> None:
        self._arbiter = arbiter
        self._reload = arbiter.reload
        self._last_old = 0  # the number of the last worker that is to go
        self.is_given_up = False  # because the server is to stop

    def reload(self) -> None:
        """Starts new workers, waits until they are ready, and ends the old ones. Signals are handled afterwards."""
        arbiter = self._arbiter
        self._last_old = arbiter.worker_age
        arbiter.manage_workers = self._manage
        WorkerReplacement.is_replacement = True
        try:
            self._reload()
        except _NewWorkersFailed:
            arbiter.log.error("the new worker processes could not start; the old ones serve on")
        finally:
            WorkerReplacement.is_replacement = False
            del arbiter.manage_workers

    @property
    def _new(self) -> dict[int, Any]:
        return {pid: worker for pid, worker in self._arbiter.WORKERS.items() if worker.age > self._last_old}

    def _manage(self) -> None:
        """Ends the old workers once all new ones are ready. Waits. Raises _NewWorkersFailed if one has ended."""
        arbiter = self._arbiter
        if self._wait_for_new():
            tell_replaced(worker for worker in arbiter.WORKERS.values() if worker.age <= self._last_old)
        type(arbiter).manage_workers(arbiter)

    def _wait_for_new(self) -> bool:
        """Waits until all new workers are ready; returns False if they take too long, or the server is to stop."""
        arbiter = self._arbiter
        deadline = time.monotonic() + _READY_WITHIN
        while not self.is_given_up and time.monotonic() < deadline:
            with suppress(HaltServer):
                arbiter.reap_workers()
            new = self._new
            if len(new) < arbiter.num_workers:
                self._end_new()
                raise _NewWorkersFailed
            if all(map(_is_ready, new.values())):
                return True
            arbiter.murder_workers()
            time.sleep(_LOOK)
        return False

    def _end_new(self) -> None:
        while new := self._new:
            for pid in new:
                self._arbiter.kill_worker(pid, signal.SIGKILL)
            time.sleep(_LOOK)
            with suppress(HaltServer):
                self._arbiter.reap_workers()


def tell_replaced(workers: Iterable[Any]) -> None:
    """Tells workers, before they are told to end, that others serve what comes. In the master."""
    for worker in workers:
        with suppress(OSError, ValueError):  # it has ended, and its file is closed
            os.fchmod(worker.tmp.fileno(), _IS_REPLACED)


def has_predecessors() -> bool:
    """Tells whether others serve until this worker is ready: the old ones of its master, or those of the master that
    has started its own on SIGUSR2. In the worker."""
    return WorkerReplacement.is_replacement or old_master() is not None


def old_master() -> int | None:
    """Returns the process that has started this worker's master to take its place; None where there is none, or it has
    ended. In the worker."""
    pid = os.environ.get(_OLD_MASTER, "")
    return int(pid) if pid.isdecimal() else None


def tell_ready(worker: Any) -> None:
    """Tells the master that a worker is ready. In the worker."""
    os.fchmod(worker.tmp.fileno(), _IS_READY)


def is_replaced(worker: Any) -> bool:
    """Tells whether a worker is to end because others serve what comes. In the worker."""
    heartbeats = getattr(worker, "tmp", None)  # other servers' workers have none
    return heartbeats is not None and stat.S_IMODE(os.fstat(heartbeats.fileno()).st_mode) == _IS_REPLACED


def _is_ready(worker: Any) -> bool:
    return stat.S_IMODE(os.fstat(worker.tmp.fileno()).st_mode) == _IS_READY


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
    except OSError:
        return False
