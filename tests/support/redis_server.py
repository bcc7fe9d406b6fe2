"""A real Redis or Valkey server on a port of its own, which tests may kill and start again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

START_SECONDS = 20.0
PROGRAMS = ("redis-server", "valkey-server")


class RedisServer:
    """One server in a folder of its own: what it has on its disk, it has again after a restart.

    Nothing is on the disk without `appendonly="yes"`: no snapshots are taken. `port` and `url` stay the same for all
    of its lives.
    """

    def __init__(self, program: str, folder: Path, **options: str) -> None:
        self._program = program
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        # Bound as long as this lives, so that nobody else is given the port, and not listened to.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = int(self._reserved.getsockname()[1])
        self.password = options.get("requirepass", "")
        self.start()

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The same server by its Unix socket."""
        return f"unix://{self._folder / 'redis.sock'}"

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")

    def start(self) -> None:
        """Starts it, on the same port and folder as before, and waits until it answers."""
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "unixsocket": str(self._folder / "redis.sock"),
            "logfile": str(self._folder / "log"),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
        } | {name.replace("_", "-"): value for name, value in self._options.items()}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [self._program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, f"{self._program} ended at once:\n{self.log}"
            assert time.monotonic() < deadline, f"{self._program} did not answer in time:\n{self.log}"
            time.sleep(0.02)

    def command(self, *words: str) -> str:
        """Sends one command of plain words past all clients, and returns the first 64 KiB of the reply as text."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_SECONDS) as connection:
            if self.password:
                connection.sendall(f"AUTH {self.password}\r\n".encode())
                assert connection.recv(64).startswith(b"+OK")
            pieces = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
            connection.sendall(b"*%d\r\n%s" % (len(words), pieces))
            return connection.recv(65536).decode("utf-8", "replace")

    def kill(self) -> None:
        """Kills it as kill -9 does, and waits for its end. Twice is harmless."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)

    def close(self) -> None:
        """Kills it, and gives its port back."""
        self.kill()
        self._reserved.close()

    def pause(self) -> None:
        """Stops it in mid-air: connections stay, nothing is answered."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    @contextmanager
    def monitor(self) -> Iterator[bytearray]:
        """Yields all that is sent to it meanwhile, and what its scripts do."""
        seen = bytearray()
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_SECONDS) as connection:
            connection.sendall(b"MONITOR\r\n")
            assert connection.recv(5) == b"+OK\r\n"
            connection.settimeout(None)

            def read() -> None:
                with suppress(OSError):
                    while data := connection.recv(1 << 16):
                        seen.extend(data)

            reading = threading.Thread(target=read)
            reading.start()
            yield seen
            connection.shutdown(socket.SHUT_RDWR)
            reading.join(START_SECONDS)

    def _answers(self) -> bool:
        with suppress(OSError):
            return self.command("PING").startswith("+PONG")
        return False


def redis_program() -> str:
    """Returns the path of redis-server or valkey-server; skips the test where there is neither."""
    for program in PROGRAMS:
        if path := shutil.which(program):
            return path
    pytest.skip("neither redis-server nor valkey-server is installed")


@contextmanager
def redis_server(**options: str) -> Iterator[RedisServer]:
    """Runs a server with these options of its configuration, `maxmemory_policy="allkeys-lru"`, and ends it."""
    program = redis_program()
    folder = Path(tempfile.mkdtemp(prefix="corosrv-redis-"))  # short enough for a socket's path
    try:
        server = RedisServer(program, folder, **options)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
