"""Replicas that are each other's peers: real servers, whose ports are known before they start."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.serve.fronts import ServerFront
from tests.serve.server import SERVE, Servers
from tests.support.waiting import eventually

TOKEN = "the-token-of-all-replicas"


class Replica(ServerFront):
    """One replica, with the client of its management socket."""

    def peers(self) -> dict[str, dict[str, Any]]:
        """Returns its peers as operators see them, by their URLs."""
        return {peer["url"]: peer for peer in self.manage("GET", "/v1/peers")["peers"]}

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def wait_peer(self, url: str, state: str, within: float = 30.0) -> None:
        eventually(lambda: self.peers()[url]["state"] == state, within, f"{url} is {state}\n{self.server.log}")

    def wait_handler(self, url: str, name: str, within: float = 60.0) -> None:
        """Waits until a peer has said that it serves a handler: at first it may still start its workers."""
        eventually(lambda: name in self.peers()[url]["handlers"], within, f"{url} announces {name}\n{self.server.log}")

    def delegated(self) -> dict[str, float]:
        """Returns how many requests could not be served here, by what became of them."""
        name = "corosrv_delegated_total{result="
        return {
            sample.removeprefix(name).strip('"}'): value
            for sample, value in self.server.metrics().items()
            if sample.startswith(name) and value
        }


class Port:
    """A port of this machine that only a server of ours gets, told which before it starts.

    It is bound, so that nobody is given it, and does not listen: whoever wants exactly this one may listen there.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.number}"

    def close(self) -> None:
        self._socket.close()


@contextmanager
def ports(n: int) -> Iterator[list[Port]]:
    with ExitStack() as stack:
        reserved = [Port() for _ in range(n)]
        for port in reserved:
            stack.callback(port.close)
        yield reserved


@contextmanager
def replica(
    servers: Servers, name: str, port: Port, *peers: str, wait_for: str | None = "ok", **settings: Any
) -> Iterator[Replica]:
    """Starts a replica of this name with these peers."""
    run_dir = Path(tempfile.mkdtemp(prefix="corosrv-"))
    options = {"run_dir": run_dir, "replica_id": name, "peers": " ".join(peers), "peer_token": TOKEN} | settings
    try:
        server = servers.start(*SERVE, "--port", str(port.number), wait_for=wait_for, **options)
        try:
            yield Replica(server, run_dir)
        finally:
            server.stop()
    finally:
        shutil.rmtree(run_dir)
