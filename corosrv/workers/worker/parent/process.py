"""Starts a child process in a group of its own, signals all of the group, and reports its end.

The child is started by the standard library's Popen, whether gevent has patched the process or not: it forks in C,
within milliseconds, while gevent's runs Python in the copy of a process that may have many threads. Where gevent has
patched, the common subprocess module can start nothing any more, and the os that it uses closes descriptors late, so
`_copy` loads another one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gevent.event import Event
from gevent.hub import get_hub
from gevent.monkey import get_original

from corosrv.contracts.settings import child_environment


def _plain_os() -> ModuleType:
    module = ModuleType("os")
    vars(module).update((name, get_original("os", name)) for name in dir(os))
    return module


def _copy() -> Any:
    spec = importlib.util.find_spec("subprocess")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.os = _plain_os()
    return module


plain_subprocess = _copy()


_ONLY_SESSIONS = sys.version_info < (3, 11)  # a child cannot be started in a group of its own alone
_READ = 1  # what a watcher of gevent watches for


@dataclass(frozen=True, slots=True)
class Exit:
    """Holds the exit code or signal that ended a process."""

    code: int | None  # as subprocess has it: negative is a signal; None when another part of this process took it

    def __str__(self) -> str:
        if self.code is None:
            return "exit code unknown"
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"signal {-self.code} ({signal.Signals(-self.code).name})"
        except ValueError:  # a real-time one
            return f"signal {-self.code}"


class Process:
    """Owns a running child, the leader of its process group. Belongs to the thread of the hub that it was started on.

    It leaves nothing behind: when it has ended, it is reaped and the rest of its group is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        inherited: Iterable[int] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        own_session: bool = True,
    ) -> None:
        """Starts the process. It keeps the descriptors `inherited`, and its standard input is empty.

        `env`: all of its variables; None: this process's without its secrets.
        `own_session`: False leaves it in this process's session. Kernels for desktops compare priorities only within
        a session. Before Python 3.11 it always gets its own.

        Blocks the hub for milliseconds. Raises OSError.
        """
        loop = get_hub().loop
        if loop.default:
            loop.install_sigchld()  # before there is a child that may end
        group = {"start_new_session": True} if own_session or _ONLY_SESSIONS else {"process_group": 0}
        self._popen: Any = plain_subprocess.Popen(
            command,
            stdin=plain_subprocess.DEVNULL,
            pass_fds=tuple(inherited),
            env=child_environment() if env is None else env,
            cwd=cwd,
            **group,
        )
        self.pid: int = self._popen.pid
        self.exit: Exit | None = None  # when it has ended
        self._has_ended = Event()
        # No switch since the start: the main hub reaps whoever ends, and forgets the status of those nobody watches.
        self._stop_watching = _watch_child(self) if loop.default else _watch_pidfd(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for its end, at most `timeout` seconds. Returns whether it has ended."""
        return bool(self._has_ended.wait(timeout))

    def terminate(self) -> None:
        """Asks all of the group to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills all of the group, also stopped processes. Does not wait for their end."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Not once it was reaped: its number may by then be somebody else's.
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def on_exit(self, code: int | None) -> None:
        """Ends the rest of the group and wakes waiters. Called once, when the process was reaped."""
        self.kill()  # the others; while one of them lives, the group keeps its number
        self._stop_watching()
        self.exit = Exit(code)
        self._popen.returncode = 0 if code is None else code  # or it would warn of a process that was left running
        self._has_ended.set()


def _watch_child(process: Process) -> Any:
    """Watches on the main hub, which reaps all children as soon as anybody watches one."""
    watcher = get_hub().loop.child(process.pid)
    watcher.start(lambda: process.on_exit(os.waitstatus_to_exitcode(watcher.rstatus)))
    return watcher.close


def _watch_pidfd(process: Process) -> Any:
    """Watches on the hub of another thread, which cannot watch children."""
    pidfd = os.pidfd_open(process.pid)
    watcher = get_hub().loop.io(pidfd, _READ)

    def stop() -> None:
        watcher.close()
        os.close(pidfd)

    watcher.start(lambda: process.on_exit(_reap(process.pid)))
    return stop


def _reap(pid: int) -> int | None:
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED)
    except ChildProcessError:  # the main hub was faster
        return None
    assert status is not None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
