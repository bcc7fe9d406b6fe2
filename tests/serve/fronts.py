"""Servers that forward: a front, and the operator's calls to it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corosrv.web.management.client import ManagementClient, UnixConnection, sockets
from tests.serve.server import Server, Servers
from tests.support.waiting import eventually


class ServerFront:
    """A server that forwards to others, with the client of its management socket."""

    def __init__(self, server: Server, run_dir: Path) -> None:
        self.server = server
        self._run_dir = run_dir

    def manage(self, method: str, target: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Calls the management API. Raises ManagementError."""
        return ManagementClient(self._socket).call(method, target, body)

    def manage_text(self, method: str, target: str) -> str:
        """Calls what answers in words, and not in JSON."""
        connection = UnixConnection(self._socket)
        try:
            connection.request(method, target)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    @property
    def _socket(self) -> str:
        (socket,) = eventually(lambda: sockets(str(self._run_dir)), what="a management socket")
        return socket

    def upstream(self, number: int = 0) -> dict[str, Any]:
        """Shows one upstream, in the order in which they were added."""
        shown: dict[str, Any] = self.manage("GET", "/workers")["workers"][number]
        return shown

    def add(self, url: str, **options: Any) -> str:
        """Adds an upstream and returns its id."""
        return str(self.manage("POST", "/workers", {"url": url, **options})["id"])

    def wait_state(self, state: str, number: int = 0) -> None:
        eventually(lambda: self.upstream(number)["state"] == state, what=f"state {state}")

    def wait_queued(self, n: int) -> None:
        def depth() -> int:
            return sum(queue["depth"] for queue in self.manage("GET", "/v1/queues")["queues"])

        eventually(lambda: depth() == n, what=f"{n} queued")


@contextmanager
def front(servers: Servers, *upstreams: str, wait_for: str | None = "ok", **settings: Any) -> Iterator[ServerFront]:
    """Starts a front of upstreams, which has no model of its own unless one is named."""
    run_dir = Path(tempfile.mkdtemp(prefix="corosrv-"))
    options: dict[str, Any] = {"model": "", "upstream": " ".join(upstreams), "run_dir": run_dir} | settings
    try:
        server = servers.start(wait_for=wait_for, **options)
        try:
            yield ServerFront(server, run_dir)
        finally:
            server.stop()
    finally:
        shutil.rmtree(run_dir)
