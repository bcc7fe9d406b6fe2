"""`corosrv top` beside a running server."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tests.serve.server import BIN, Server, Servers
from tests.serve.wire import CHAT, chat, request
from tests.support.waiting import eventually


def top(server: Server, *options: str) -> subprocess.CompletedProcess[str]:
    command = [BIN / "corosrv", "top", "--url", f"http://127.0.0.1:{server.port}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_one_picture_is_printed_of_what_runs(server: Server) -> None:
    with server.connect() as connection:
        connection.send(request("POST", CHAT, chat("hi", stream=True)))
        server.wait_metric("running", 1)
        ended = top(server, "--once")
    server.wait_idle()

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "synthetic: 1 of " in ended.stdout
    assert "1.0 streams write" in ended.stdout
    assert "decoding" in ended.stdout
    assert "\x1b" not in ended.stdout  # no terminal


def test_a_key_is_sent_and_its_want_is_told(start: Servers) -> None:
    server = start.start(api_keys="first-key")

    assert top(server, "--once", "--api-key", "first-key").returncode == 0
    refused = top(server, "--once")
    assert refused.returncode == 1
    assert refused.stderr.startswith("corosrv: 127.0.0.1:")
    assert "401" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("is_terminal", [True, False])
def test_it_goes_on_until_ctrl_c(server: Server, is_terminal: bool) -> None:
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    command = [BIN / "corosrv", "top", "--url", f"http://127.0.0.1:{server.port}"]
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, env=environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def has_two_pictures() -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            seen += os.read(ours, 65_536)
        return seen.count(b"corosrv top  127.0.0.1") >= 2

    try:
        eventually(has_two_pictures, what="two pictures")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert time.monotonic() - began < 10
    finally:
        process.kill()
        process.wait()
        if is_terminal:
            with suppress(OSError):  # the end of a terminal
                while piece := os.read(ours, 65_536):
                    seen += piece
        os.close(ours)
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert (b"\x1b[H" in seen) is is_terminal  # drawn in place
    assert (b"\x1b[?25h" in seen) is is_terminal  # the cursor is there again
