"""Actors that each own one process of corosrv on a node: a front, an engine, or a worker of a pool. Needs no ray.

A process ends with the actor that owns it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from corosrv.base.errors import ManagementError
from corosrv.base.run_dir import OwnedFolder, sweep
from corosrv.fleet.ray.cluster_file import EngineSection, FrontSection, Kind, PoolSection, ProcessGroup
from corosrv.fleet.ray.plan import MemberState

CALL_TIME = 5.0  # seconds that each step of a call may take
_KEPT_LINES = 5  # of a process' last words
_FIRST_LINES = 500  # among which addresses are looked for


class OwnedProcess:
    """A command of corosrv as a child process. What it prints goes on to this process' output."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Starts it. `environ`: variables beside those of this process, of which it gets none of corosrv's."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COROSRV_")}
        theirs, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "corosrv.fleet.ray", str(theirs), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs,),
                env=inherited | {"PYTHONUNBUFFERED": "1"} | dict(environ),
                start_new_session=True,
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(theirs)
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._read, name="corosrv-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for raw in output:
                line = raw.decode("utf-8", "replace").rstrip()
                if len(self._first) < _FIRST_LINES:
                    self._first.append(line)
                if line:
                    self._last.append(line)
                print(line, flush=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last line that it printed."""
        return self._last[-1] if self._last else ""

    def is_running(self) -> bool:
        return self._process.poll() is None

    def first_match(self, pattern: re.Pattern[str]) -> str:
        """Returns what the pattern's group matches first in its output, or nothing."""
        for line in tuple(self._first):
            if match := pattern.search(line):
                return match[1]
        return ""

    def stop(self, seconds: float) -> None:
        """Asks it to end, and kills it and its group when it has not ended in so long. Waits."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Kills what is left of it and its group, and waits for its end. May be called twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(CALL_TIME)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def call(method: str, url: str, token: str = "") -> dict[str, Any]:
    """Returns the JSON that a server answers. Waits. Raises ManagementError for a failure, and where nobody answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = urllib3.request(method, url, headers=headers, timeout=CALL_TIME, retries=False, redirect=False)
        value = json.loads(answer.data)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise ManagementError(f"{url} gave no answer: {error}") from None
    if answer.status >= 400 or not isinstance(value, dict):
        raise ManagementError(f"{url} answered with status {answer.status}")
    return value


LOOK = 0.5  # seconds between two looks at a process
START_TIME = 900.0  # seconds in which a process must be ready; a model may have to be downloaded
HUNG_TIME = 60.0  # seconds without an answer before a process is replaced
DRAIN_TIME = 25.0  # seconds that running calls get, where no setting says so
MORE_TIME = 15.0  # seconds beyond these before a process is killed
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a process that died is followed by another
LONG_LIFE = 60.0  # seconds of a process after which the pause begins anew
KEY_VARIABLE = "COROSRV_UPSTREAM_KEY_RAY"  # of fronts: what engines ask for; and the mark of engines among upstreams
_FOLDER_PREFIX = "corosrv-ray-"
_LISTENING = re.compile(r"Listening at: (https?://\S+)")
_MANAGED = re.compile(r"management on (https?://[^\s,]+)")
_ADDED = re.compile(r"(\S+) is an upstream")
_JOINED = re.compile(r"joined \S+ as (\S+)")


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """Secrets that the processes of one cluster share: the token of the fronts' management, and the engines' key."""

    token: str
    engine_key: str


class ClusterMember:
    """An actor that keeps one process alive until it is drained. A thread of its own looks after the process."""

    def __init__(self, group: ProcessGroup, host: str, shared: ClusterSecrets, is_joinable: bool = False) -> None:
        """`host`: the node's address to listen on. `is_joinable`: says of a front that workers join it."""
        self._group = group
        self._host = host
        self._shared = shared
        self._is_joinable = is_joinable
        sweep(_FOLDER_PREFIX)  # those of actors that were killed on this node
        self._own_folder = OwnedFolder(_FOLDER_PREFIX)
        self._folder = Path(self._own_folder.open())
        self._token_file = self._folder / "token"
        self._token_file.touch(0o600)
        self._token_file.write_text(shared.token)
        self._changed = threading.Condition()
        self._fronts: tuple[str, ...] = ()
        self._is_draining = False
        self._state = MemberState.STARTING
        self._reason = ""
        self._url = ""
        self._management = ""
        self._n_starts = 0
        self._heard_at = time.monotonic()  # the last good answer of the process
        self._pid = 0
        self._join: OwnedProcess | None = None
        self._joined: tuple[str, ...] = ()
        threading.Thread(target=self._live, name="corosrv-member", daemon=True).start()

    # The controller's calls.

    def status(self) -> dict[str, Any]:
        """Returns the state and addresses of the process."""
        return {
            "state": self._state.value,
            "reason": self._reason,
            "url": self._url,
            "management": self._management,
            "fronts": list(self._fronts),
            "restarts": max(0, self._n_starts - 1),
            "host": self._host,
            "pid": self._pid,
            "actor_pid": os.getpid(),
        }

    def connect(self, fronts: list[str]) -> None:
        """Tells which fronts there are, by the URLs of their management ports."""
        with self._changed:
            self._fronts = tuple(fronts)
            self._changed.notify_all()

    def drain(self) -> None:
        """Begins to end the process; `status` tells of its end as `gone`. Repeating it is harmless."""
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()

    # The thread.

    def _live(self) -> None:
        pause = FIRST_PAUSE
        while not self._is_draining:
            if self._group.kind is Kind.POOL and not self._fronts:
                self._reason = "waits for a front"
                self._wait(LOOK)
                continue
            began = self._heard_at = time.monotonic()
            words = self._run()
            if self._is_draining:
                break
            pause = FIRST_PAUSE if time.monotonic() - began > LONG_LIFE else min(2 * pause, LONGEST_PAUSE)
            self._reason = f"{words}; it starts again"
            self._state = MemberState.FAILED
            self._wait(pause)
        self._own_folder.close()
        self._state = MemberState.GONE

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._is_draining:
                self._changed.wait(seconds)

    def _run(self) -> str:
        """Runs one process to its end; returns why it ended."""
        self._n_starts += 1
        self._url = self._management = ""
        used = self._fronts
        process = OwnedProcess(self._command(), self._environ())
        self._pid = process.pid
        try:
            while process.is_running() and not self._is_draining:
                if fault := self._look(process):
                    return fault
                if self._group.kind is Kind.POOL and self._fronts and self._fronts != used:
                    process.stop(self._drain_time())
                    return "the front that it had joined is gone"
                self._wait(LOOK)
            if self._is_draining:
                self._state = MemberState.DRAINING
                self._leave()
                process.stop(self._drain_time())
                return ""
            return process.last_words or f"the process ended with status {process.status}"
        finally:
            self._leave()
            process.kill()
            self._pid = 0

    def _look(self, process: OwnedProcess) -> str:
        """Looks after a process that runs; returns why it must be replaced, or nothing."""
        now = time.monotonic()
        if self._is_well(process):
            self._heard_at = now
            self._reason = "" if self._has_joined() else "joins its fronts"
            if not self._reason:
                self._state = MemberState.READY
        elif self._state is MemberState.READY and now - self._heard_at > HUNG_TIME:
            return f"it gave no answer for {HUNG_TIME:g} s"
        elif self._state is not MemberState.READY and now - self._heard_at > START_TIME:
            return f"it was not ready within {START_TIME:g} s"
        elif self._state is MemberState.FAILED:
            self._state = MemberState.STARTING
        return ""

    def _has_joined(self) -> bool:
        """Keeps an engine joined to its fronts; tells whether it is ready for calls."""
        if self._group.kind is not Kind.ENGINE:
            return True
        self._keep_joined()
        return self._state is MemberState.READY or (self._join is not None and self._join.first_match(_ADDED) != "")

    def _is_well(self, process: OwnedProcess) -> bool:
        if self._group.kind is Kind.POOL:
            return process.first_match(_JOINED) != ""
        is_front = self._group.kind is Kind.FRONT
        self._url = process.first_match(_LISTENING)
        self._management = process.first_match(_MANAGED) if is_front else ""
        if not (self._management if is_front else self._url):
            return False
        was_ready = self._state is MemberState.READY
        try:
            if is_front:  # its own port may be another front's as well
                answer = call("GET", f"{self._management}/v1/server", self._shared.token)
            else:
                answer = call("GET", f"{self._url}{'/health/live' if was_ready else '/health'}")
        except ManagementError:
            return False
        return not is_front or answer["state"] == "ready"

    def _keep_joined(self) -> None:
        """Keeps a `corosrv upstream join` for the fronts there are."""
        if self._join is not None and self._join.is_running() and self._joined == self._fronts:
            return
        if self._join is not None:
            self._join.kill()  # asked to end it would take the engine from the fronts
        self._join, self._joined = None, self._fronts
        if not self._fronts:
            return
        section = self._group.section
        assert isinstance(section, EngineSection)
        limit = ["--concurrency", str(section.concurrency)] if section.concurrency else []
        servers = [word for front in self._fronts for word in ("--server", front)]
        keys = ["--api-key-env", KEY_VARIABLE, "--token-file", str(self._token_file)]
        self._join = OwnedProcess(["upstream", "join", self._url, *servers, *keys, *limit], {})

    def _leave(self) -> None:
        """Takes an engine from its fronts; what it runs for them may end. Waits."""
        if self._join is not None:
            self._join.stop(MORE_TIME)
            self._join = None

    def _drain_time(self) -> float:
        return float(self._group.section.settings.get("drain_s", DRAIN_TIME)) + MORE_TIME

    # The command.

    def _command(self) -> list[str]:
        section = self._group.section
        if isinstance(section, PoolSection):
            words = ["worker", section.app, "--join", self._fronts[0], "--token-file", str(self._token_file)]
            words += ["--app-dir", section.app_dir] if section.app_dir else []
            words += ["--pool", section.pool] if section.pool else []
            return words + (["--factory"] if section.factory else [])
        if isinstance(section, EngineSection):
            return ["serve", "--host", self._host, "--port", "0", "--model", section.model]
        assert isinstance(section, FrontSection)
        words = ["serve", "--host", self._host, "--port", str(section.port), "--elastic"]
        words += ["--mgmt-port", "0", "--mgmt-host", self._host, "--mgmt-token-file", str(self._token_file)]
        words += ["--joinable"] if self._is_joinable else []
        words += ["--open"] if section.is_open else []
        # A front that replaces another on its node listens beside it until that one has drained.
        return [*words, "--", "--reuse-port"] if section.port else words

    def _environ(self) -> Mapping[str, str]:
        section = self._group.section
        settings: dict[str, Any] = dict(section.settings)
        if isinstance(section, EngineSection):
            settings.setdefault("threads", max(1, int(section.cpus)))
            settings["api_keys"] = ",".join(filter(None, [self._shared.engine_key, settings.get("api_keys")]))
        environ = {
            f"COROSRV_{name.upper()}": str(int(value) if isinstance(value, bool) else value)
            for name, value in settings.items()
        }
        if isinstance(section, FrontSection):
            environ[KEY_VARIABLE] = self._shared.engine_key
        return environ | {"COROSRV_RUN_DIR": str(self._folder / "run")}
