"""Child processes that end with the actor that owns them, and calls of the servers that they are."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import urllib3

from corosrv.base.errors import ManagementError

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
