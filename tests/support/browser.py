"""Chromium without a window, told what to do through a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 30.0  # seconds

# The browser reads from its descriptor 3 and writes to 4. Ours are moved out of the way first: they may be these.
_HAND_OVER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(Exception):
    """The browser did not do what it was told."""


class Page:
    """One page of a browser."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._unread = b""
        self._n_sent = 0
        self._session = ""
        self._traced: list[dict[str, Any]] | None = None
        self.logged: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._n_sent += 1
        message: dict[str, Any] = {"id": self._n_sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while True:
            heard = self._hear(deadline)
            if heard.get("id") == self._n_sent:
                if "error" in heard:
                    raise BrowserError(f"{method}: {heard['error']['message']}")
                return dict(heard["result"])
            if heard.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.logged.append(json.dumps(heard["params"]))
            self._keep(heard)

    def _keep(self, heard: dict[str, Any]) -> None:
        if heard.get("method") == "Tracing.dataCollected" and self._traced is not None:
            self._traced += heard["params"]["value"]

    def _hear(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser says nothing"
            read = os.read(self._read_fd, 1 << 20)
            assert read, "the browser has ended"
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    @contextmanager
    def before_pages(self, program: str) -> Iterator[None]:
        """Runs a program at the beginning of every page that is opened in the meantime."""
        added = self._call("Page.addScriptToEvaluateOnNewDocument", source=program)
        yield
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])

    def resize(self, width: int, height: int, is_dark: bool = False) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def type(self, text: str) -> None:
        """Types a text where the focus is."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Presses a key, as "Enter" with its code 13; modifiers: 1 Alt, 2 Control, 8 Shift."""
        typed = {"text": "\r"} if key == "Enter" and not modifiers else {}
        members = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self._call("Input.dispatchKeyEvent", type="keyDown", **members, **typed)
        self._call("Input.dispatchKeyEvent", type="keyUp", **members)

    @contextmanager
    def tasks(self) -> Iterator[list[float]]:
        """Gives the tasks of the page's main thread in the meantime, at the end: milliseconds of the processor."""
        tasks: list[float] = []
        events = self._traced = []
        self._call("Tracing.start", traceConfig={"includedCategories": ["toplevel"]}, transferMode="ReportEvents")
        yield tasks
        self._call("Tracing.end")
        deadline, is_complete = time.monotonic() + TIMEOUT, False
        while not is_complete:
            heard = self._hear(deadline)
            self._keep(heard)
            is_complete = heard.get("method") == "Tracing.tracingComplete"
        self._traced = None
        threads = {
            (one["pid"], one["tid"]) for one in events if one.get("args", {}).get("name") == "CrRendererMain"
        }  # fmt: skip
        tasks += [
            one["tdur"] / 1000 for one in events
            if "RunTask" in one["name"] and "tdur" in one and (one["pid"], one["tid"]) in threads
        ]  # fmt: skip

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        done = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise BrowserError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def load(self, program: str) -> None:
        """Runs statements of a program."""
        self.run(f"{program}; 0")

    def wait(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            # A page that is on its way takes the one before with it, in the middle of an answer.
            with suppress(BrowserError):
                if value := self.run(script):
                    return value
            assert time.monotonic() < deadline, f"not true in time: {script}\n{self.logged}"
            time.sleep(0.05)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page in a browser of its own, which finds `*.example` here; skips the test where there is no Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here")
    its_input, our_output = os.pipe()
    our_input, its_output = os.pipe()
    command = [
        sys.executable, "-c", _HAND_OVER, str(its_input), str(its_output), program, "--headless=new", "--no-sandbox",
        "--disable-gpu", "--remote-debugging-pipe", "--no-first-run", "--no-proxy-server", "--hide-scrollbars",
        "--host-resolver-rules=MAP *.example 127.0.0.1", f"--user-data-dir={folder}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, pass_fds=(its_input, its_output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(its_input)
    os.close(its_output)
    try:
        yield Page(our_input, our_output)
    finally:
        process.kill()
        process.wait(TIMEOUT)
        os.close(our_input)
        os.close(our_output)
