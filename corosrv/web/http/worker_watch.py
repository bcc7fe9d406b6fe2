"""Tells gunicorn's master which workers hang: those that are silent although they could run."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
    except OSError:
        return False
