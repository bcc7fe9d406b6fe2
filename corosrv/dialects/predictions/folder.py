"""The server's folder for files of predictions: locked while the server lives, removed when it ends.

A server that is killed removes nothing; the next one that starts does.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile

log = logging.getLogger("corosrv.predictions")

PREFIX = "corosrv-server-"


class ServerFolder:
    """Owns one folder in the temporary directory, made when it is first needed. Belongs to the process that made it."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._lock = -1  # a descriptor of the folder; its lock ends with the process, however that ends

    def new_path(self) -> str:
        """Returns a path in the folder that nobody can guess and where nothing is."""
        name = os.urandom(16).hex()
        if self._path is None or not _is_at(self._lock, self._path):
            try:
                self._make()
            except OSError as error:  # a full disk, say: most predictions have no files and go on
                log.warning("the folder for files of predictions cannot be made: %s", error)
        return os.path.join(self._path or os.path.join(tempfile.gettempdir(), f"{PREFIX}{name}"), name)

    def _make(self) -> None:
        self.close()
        while self._path is None:
            path = os.path.join(tempfile.gettempdir(), f"{PREFIX}{os.urandom(8).hex()}")
            os.mkdir(path, 0o700)
            lock = _locked(path)
            if lock is not None:
                self._path, self._lock = path, lock
            # Else another server that starts just now took the folder for one that was left behind.

    def close(self) -> None:
        """Removes the folder. Waits for the disk. Later calls do nothing, nor does another thread's meanwhile."""
        path, self._path = self._path, None
        if path is not None:
            lock, self._lock = self._lock, -1
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def sweep() -> None:
    """Removes the folders of servers that have ended without removing them. Waits for the disk: call it in a thread."""
    directory = tempfile.gettempdir()
    for name in os.listdir(directory):
        if not name.startswith(PREFIX):
            continue
        path = os.path.join(directory, name)
        if (lock := _locked(path)) is not None:
            log.info("removing %s, left behind by a server that was killed", path)
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: str) -> int | None:
    """Returns a descriptor of the folder at `path` that holds its lock; None where it is locked, gone or not ours."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(folder).st_uid == os.geteuid() and _is_at(folder, path):
            return folder
    os.close(folder)
    return None


def _is_at(folder: int, path: str) -> bool:
    """Returns whether the open folder is still the one at `path`: somebody who cleans up may have removed it."""
    try:
        return os.path.samestat(os.fstat(folder), os.lstat(path))
    except OSError:
        return False
