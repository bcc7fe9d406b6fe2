"""Counts what the engines of a run directory take, whichever front has started them, and has idle ones make room.

An engine's process holds the lock of its engine for as long as it lives, and touches it while it is used; beside it
stands what the engine takes. A front that is about to start one takes the lock first, so that others count it already.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import gevent

from corosrv.base.errors import CorosrvError
from corosrv.base.run_dir import default_path, locked, open_run_dir
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine.process.connector import LOCK, connect_to, digest_of, lock_path, socket_path, take_lock
from corosrv.models.engine.process.messages import (
    MAX_FRAME,
    PROTOCOL,
    EngineRelease,
    FromFront,
    FrontHello,
    ReleaseIfIdle,
    ToFront,
    front_codec,
)
from corosrv.workers.wire.gevent_channel import GeventChannel

log = logging.getLogger("corosrv.models")

_LEAVES_S = 1.0  # in which an engine that has been asked should have ended: until then its memory is on its way
_ANSWER_S = 1.0  # in which an engine's process says whether it asks its fronts


class RunningEngine(NamedTuple):
    """An engine whose process lives, or is about to be started."""

    digest: str
    n_bytes: int  # that it takes; 0: not known
    used_at: float  # Unix time


class EngineBudget:
    """Counts the engines of one run directory. Belongs to the hub's thread of a front."""

    def __init__(self, run_dir: str = "") -> None:
        """`run_dir`: see corosrv.base.run_dir; it is made when it is needed first."""
        self._run_dir = run_dir
        self._reserved: dict[str, int] = {}  # locks that are taken, by digests, before their engines are started
        self._asked: dict[str, float] = {}  # when an engine was asked to make room, by its digest
        self._refused: dict[str, float] = {}  # and when it was in use

    @property
    def _folder(self) -> str:
        return open_run_dir(self._run_dir or default_path())

    def lock_out_others(self) -> AbstractContextManager[None]:
        """Keeps all other fronts from reserving memory, for a moment: whoever waits for it blocks."""
        return locked(self._folder)

    def running(self) -> list[RunningEngine]:
        """Lists the engines, the least recently used first. Never waits."""
        folder = self._folder
        found = []
        for path in Path(folder).glob(f"*{LOCK}"):
            with contextlib.suppress(OSError):
                if _is_held(path):
                    digest = path.name.removesuffix(LOCK)
                    found.append(RunningEngine(digest, _read_bytes(folder, digest), path.stat().st_mtime))
        return sorted(found, key=lambda engine: engine.used_at)

    def held_bytes(self, models: Iterable[ModelSettings]) -> tuple[int, list[bool]]:
        """Returns what all engines take, and of each of these models whether its engine is among them. Never waits."""
        running = {engine.digest: engine.n_bytes for engine in self.running()}
        return sum(running.values()), [digest_of(model) in running for model in models]

    def reserve(self, model: ModelSettings, n_bytes: int) -> None:
        """Counts an engine that is about to be started, unless it is there already; see `lock_out_others`."""
        folder, digest = self._folder, digest_of(model)
        if digest not in self._reserved and (lock := take_lock(lock_path(folder, digest))) is not None:
            self._reserved[digest] = lock
            self._note(folder, digest, n_bytes)

    def take_reserved(self, digest: str) -> int | None:
        """Returns the lock that was taken for an engine, which is the caller's from now on; None if there is none."""
        return self._reserved.pop(digest, None)

    def note(self, model: ModelSettings, n_bytes: int) -> None:
        """Records what an engine takes, once its model is loaded, and that it was started: by whom does not matter."""
        digest = digest_of(model)
        self.give_up(model)
        self._note(self._folder, digest, n_bytes)

    def give_up(self, model: ModelSettings) -> None:
        """Counts an engine no longer that was not started. Twice is harmless."""
        if (lock := self._reserved.pop(digest_of(model), None)) is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _note(self, folder: str, digest: str, n_bytes: int) -> None:
        path = _bytes_path(folder, digest)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(str(n_bytes))
        written.replace(path)

    def ask_for_room(self, n_bytes: int) -> None:
        """Asks engines that nobody uses to end, the least recently used first, until there is room. Returns at once."""
        earliest = time.monotonic() - _LEAVES_S
        for engine in self.running():
            if n_bytes <= 0:
                break
            if self._asked.get(engine.digest, 0.0) < earliest:
                self._asked[engine.digest] = time.monotonic()
                gevent.spawn(self._ask, engine.digest)
            if self._refused.get(engine.digest, 0.0) < earliest:  # others are asked, too, beside one that is in use
                n_bytes -= engine.n_bytes

    def _ask(self, digest: str) -> None:
        if _is_refused(self._folder, digest):
            self._refused[digest] = time.monotonic()
            self._asked.pop(digest, None)  # it may be idle in a moment


def _is_held(path: Path) -> bool:
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # whoever wants to take it meanwhile tries again
        fcntl.flock(lock, fcntl.LOCK_UN)  # at once: gevent closes files in the hub's next turn
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _bytes_path(folder: str, digest: str) -> Path:
    return Path(folder) / f"{digest}.bytes"


def _read_bytes(folder: str, digest: str) -> int:
    try:
        return int(_bytes_path(folder, digest).read_text())
    except (FileNotFoundError, ValueError):  # it belongs to a front that counts nothing
        return 0


def _is_refused(folder: str, digest: str) -> bool:
    """Asks an engine's process to have its fronts leave; returns whether it is in use. Waits, but not for its end."""
    try:
        if (connection := connect_to(socket_path(folder, digest))) is None:
            return False
        channel: GeventChannel[FromFront, ToFront] = GeventChannel(connection, front_codec(), MAX_FRAME)
        with contextlib.closing(channel), gevent.Timeout(_ANSWER_S, False):
            channel.send(FrontHello(PROTOCOL, digest))
            channel.send(ReleaseIfIdle())
            for message in iter(channel.receive, None):
                if isinstance(message, EngineRelease):
                    return message.is_refused
    except CorosrvError as error:
        log.debug("an engine cannot be asked to make room: %s", error)
    return False
