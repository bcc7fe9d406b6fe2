"""Makes and checks the run directory: a folder of one user, in which servers and engines have their sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from corosrv.base.errors import SettingsError

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
