"""Makes and checks folders of processes: the run directory of one user, in which servers and engines have sockets, and
temporary folders, which are removed when their process has ended, however that was.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from corosrv.base.errors import SettingsError

log = logging.getLogger("corosrv")

MAX_PATH = 107  # bytes of a socket's path, without the byte that ends it


def default_path(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the path of the user's own run directory, whether it exists or not."""
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return str(Path(runtime) / "corosrv")
    return str(Path(tempfile.gettempdir()) / f"corosrv-{os.geteuid()}")


def open_run_dir(path: str) -> str:
    """Makes the folder if it is not there, and checks it. Raises SettingsError unless nobody else can use it."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(mode=0o700, exist_ok=True)
        check_private(path)
    except OSError as error:
        raise SettingsError(f"the run directory {path} cannot be used: {error.strerror}; set COROSRV_RUN_DIR") from None
    return path


def check_private(path: str) -> None:
    """Raises SettingsError for a folder that somebody else owns or can use, and OSError if there is none."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        fault = "is no folder"
    elif status.st_uid != os.geteuid():
        fault = f"belongs to the user {status.st_uid}, and this process to {os.geteuid()}"
    elif status.st_mode & 0o077:
        fault = f"can be used by others (mode {stat.S_IMODE(status.st_mode):04o}): chmod 700 {path}"
    else:
        return
    raise SettingsError(f"the run directory {path} {fault}; or set COROSRV_RUN_DIR to another one")


def path_in(folder: str, name: str) -> str:
    """Returns the path of a socket of this name. Raises SettingsError if it would be too long."""
    path = str(Path(folder) / name)
    if len(os.fsencode(path)) > MAX_PATH:
        raise SettingsError(
            f"the run directory {folder} is too long for a socket in it, whose path may have {MAX_PATH} bytes: "
            "set COROSRV_RUN_DIR to a shorter one"
        )
    return path


def process_name(pid: int) -> str:
    """Returns a name that a process shares with none before or after it: its id, and when it began. Raises OSError."""
    return f"{pid}-{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Holds a lock of all processes that have a folder, for a moment: whoever waits for it blocks."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # at once: gevent closes files in the hub's next turn
        os.close(lock)


class OwnedFolder:
    """Owns one folder in the temporary directory, made when it is first needed. Belongs to the process that made it.

    It is locked while the process lives. A process that is killed removes nothing: `sweep` does, in another one.
    """

    def __init__(self, prefix: str) -> None:
        """`prefix`: the beginning of its name, the same for all that are swept together."""
        self._prefix = prefix
        self._path: str | None = None
        self._lock = -1  # a descriptor of the folder; its lock ends with the process

    def open(self) -> str:
        """Returns its path; makes it if it is not there. Raises OSError."""
        if self._path is None or not _is_at(self._lock, self._path):
            self.close()
        while self._path is None:
            path = self._random_path()
            os.mkdir(path, 0o700)
            lock = _try_lock(path)
            if lock is not None:
                self._path, self._lock = path, lock
            # Else another process that sweeps just now took the folder for one that was left behind.
        return self._path

    def new_path(self) -> str:
        """Returns a path in the folder that nobody can guess and where nothing is."""
        try:
            folder = self.open()
        except OSError as error:  # a full disk, say: whoever needs no file goes on
            log.warning("the folder for files cannot be made: %s", error)
            folder = self._random_path()
        return os.path.join(folder, os.urandom(16).hex())

    def _random_path(self) -> str:
        return os.path.join(tempfile.gettempdir(), f"{self._prefix}{os.urandom(8).hex()}")

    def close(self) -> None:
        """Removes the folder. Waits for the disk. Later calls do nothing, nor does another thread's meanwhile."""
        path, self._path = self._path, None
        if path is not None:
            lock, self._lock = self._lock, -1
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def sweep(prefix: str) -> None:
    """Removes the folders of this user's processes that have ended without removing them. Waits for the disk."""
    directory = tempfile.gettempdir()
    for name in os.listdir(directory):
        if not name.startswith(prefix):
            continue
        path = os.path.join(directory, name)
        if (lock := _try_lock(path)) is not None:
            log.info("removing %s, left behind by a process that was killed", path)
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _try_lock(path: str) -> int | None:
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
