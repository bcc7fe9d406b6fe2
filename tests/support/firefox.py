"""Firefox without a window, told what to do through Marionette, which is what its WebDriver speaks."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import TIMEOUT, BrowserError, Page

START = 60.0  # seconds, on a busy machine
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004"}
RUN = """
const done = arguments[arguments.length - 1];
Promise.resolve().then(() => (SCRIPT)).then((value) => done({ value }), (error) => done({ error: String(error) }));
"""


class FirefoxPage(Page):
    """One page of Firefox. It counts no tasks of its thread, and has the colours of its system alone."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._socket.settimeout(TIMEOUT)
        self._unread = b""
        self._n_sent = 0
        self.logged: list[str] = []
        self._read()  # its greeting
        self._call("WebDriver:NewSession")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._n_sent += 1
        message = json.dumps([0, self._n_sent, method, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._read()
        if error is not None:
            raise BrowserError(f"{method}: {error['message']}")
        return result

    def _read(self) -> Any:
        while b":" not in self._unread:
            self._receive()
        length, _, self._unread = self._unread.partition(b":")
        while len(self._unread) < int(length):
            self._receive()
        message, self._unread = self._unread[: int(length)], self._unread[int(length) :]
        return json.loads(message)

    def _receive(self) -> None:
        read = self._socket.recv(1 << 20)
        assert read, "the browser has ended"
        self._unread += read

    def close(self) -> None:
        self._socket.close()

    def open(self, url: str) -> None:
        self._call("WebDriver:Navigate", url=url)

    def resize(self, width: int, height: int, is_dark: bool = False) -> None:
        assert not is_dark
        self._call("WebDriver:SetWindowRect", width=width, height=height)

    def type(self, text: str) -> None:
        pressed = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._call("WebDriver:PerformActions", actions=[{"type": "key", "id": "keyboard", "actions": pressed}])

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        assert not modifiers
        self.type(KEYS[key])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("WebDriver:TakeScreenshot", full=False)["value"]))

    def load(self, program: str) -> None:
        self._call("WebDriver:ExecuteScript", script=program, args=[])

    def run(self, script: str) -> Any:
        body = RUN.replace("SCRIPT", script.strip().removesuffix(";"))
        done = self._call("WebDriver:ExecuteAsyncScript", script=body, args=[])["value"]
        if "error" in done:
            raise BrowserError(f"{script}: {done['error']}")
        return done.get("value")


@contextmanager
def firefox(folder: Path) -> Iterator[FirefoxPage]:
    """A page in a Firefox of its own; skips the test where there is none."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("no Firefox here")
    (folder / "user.js").write_text('user_pref("marionette.port", 0);\nuser_pref("network.proxy.type", 0);\n')
    process = subprocess.Popen(
        [program, "--headless", "--marionette", "--no-remote", "--profile", str(folder)],
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "MOZ_CRASHREPORTER_DISABLE": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        page = FirefoxPage(port_in(folder / "MarionetteActivePort", process))
        try:
            yield page
        finally:
            page.close()
    finally:
        process.kill()
        process.wait(TIMEOUT)


def port_in(file: Path, process: subprocess.Popen[bytes]) -> int:
    """Waits until the browser has written where it listens."""
    deadline = time.monotonic() + START
    while not (file.is_file() and file.read_text().strip()):
        assert process.poll() is None, "the browser has ended"
        assert time.monotonic() < deadline, "the browser does not start"
        time.sleep(0.05)
    return int(file.read_text())
