"""`corosrv chat` against real servers: through a pipe, and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from corosrv.client.chat import ChatServer, ConnectionLost
from tests.serve.server import BIN, Server, Servers
from tests.support.waiting import eventually

SECONDS = 30.0


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest) -> Server:
    """Answers that take longer than any test."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=2, model="synthetic:?tokens_per_s=50&length=4000", ctx=8192, api_keys="secret")


def piped(lines: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "corosrv"), "chat", *arguments]
    return subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=SECONDS, env=os.environ | environ
    )


def test_lines_of_a_pipe_are_answered(start: Servers) -> None:
    server = start.start(model="synthetic:?length=4", slots=1, ctx=512)
    done = piped("Hi\n/model\n", "--url", f"http://127.0.0.1:{server.port}", "--system", "Be brief.")

    *answer, model = done.stdout.splitlines()
    assert done.returncode == 0
    assert "".join(answer).strip()
    assert model == "* synthetic"


@pytest.mark.parametrize(
    ("url", "words"), [("http://127.0.0.1:9", "Connection refused"), ("ftp://a", "url must be http://HOST:PORT")]
)
def test_a_server_that_is_not_there_is_said_in_a_sentence(url: str, words: str) -> None:
    done = piped("Hi\n", "--url", url)

    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_is_sent_and_a_wrong_one_told(slow: Server) -> None:
    url = f"http://127.0.0.1:{slow.port}"

    assert piped("", "--url", url, COROSRV_API_KEY="secret").returncode == 0
    refused = piped("", "--url", url, "--api-key", "wrong")
    assert refused.returncode == 1
    assert "API key" in refused.stderr


def _own_terminal() -> None:
    """Makes the terminal that of this process, and has Ctrl-C heard, which tests in the background ignore."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._fd, inner = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=_own_terminal,
            env=os.environ | {"TERM": "xterm", "COROSRV_API_KEY": "secret"},
        )
        os.close(inner)
        os.set_blocking(self._fd, False)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str) -> None:
        """Waits until what is shown since the last time matches."""
        match = eventually(lambda: re.search(pattern, self._read()), SECONDS, pattern)
        self.shown = self.shown[match.end() :]

    def _read(self) -> str:
        with suppress(BlockingIOError, OSError):
            self.shown += os.read(self._fd, 65_536).decode("utf-8", "replace")
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._fd)


@pytest.fixture
def terminal(slow: Server) -> Iterator[Any]:
    opened = Terminal(str(BIN / "corosrv"), "chat", "--url", f"http://127.0.0.1:{slow.port}")
    yield opened
    opened.close()


def test_ctrl_c_stops_an_answer_and_ctrl_d_ends_the_conversation(terminal: Terminal) -> None:
    terminal.wait_for(r"synthetic at http://127.0.0.1:\d+; /help for help, Ctrl-D ends")
    terminal.wait_for(">>> ")
    terminal.type("Hi\r")
    terminal.wait_for(r"\w+ \w+ \w+")
    terminal.type("\x03")
    terminal.wait_for(r"\(stopped\)")
    terminal.wait_for(">>> ")
    terminal.type("\x1b[A")  # the line before, by the arrow key
    terminal.wait_for("Hi")
    terminal.type("\x03")
    terminal.wait_for(">>> ")
    terminal.type("\x04")

    assert terminal.process.wait(SECONDS) == 0


@contextmanager
def cutting_proxy(port: int, n_bytes: int) -> Iterator[str]:
    """Stands before a server, and cuts each connection when so many bytes have come back over it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def send_on(client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):  # the body may come behind the head
                server.sendall(data)

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=send_on, args=(client, server), daemon=True).start()
            left = n_bytes
            while left and (data := server.recv(min(left, 4096))):
                client.sendall(data)
                left -= len(data)
            for side in (client, server):  # or the other thread, which reads it, would keep it open
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_an_answer_whose_connection_breaks_is_read_on(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "seed": 1, "temperature": 0}
    whole = "".join(delta.text for delta in ChatServer(f"http://127.0.0.1:{server.port}").answer(body))

    with cutting_proxy(server.port, 4000) as url:
        text = "".join(delta.text for delta in ChatServer(url).answer(body))

    assert text == whole


def test_an_answer_is_given_up_when_its_connection_breaks_again_and_again(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000}
    with cutting_proxy(server.port, 1500) as url, pytest.raises(ConnectionLost):
        list(ChatServer(url).answer(body))

    server.wait_idle()


def test_an_answer_that_is_stopped_runs_no_longer(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000}
    answer = ChatServer(f"http://127.0.0.1:{server.port}").answer(body)
    next(answer)

    answer.close()

    server.wait_idle(within=10)
