"""Thousands of clients that connect in the same instant: `python -m tests.load.storm [--clients 5000]`.

Each sends one chat, and wants one token of the synthetic model; meanwhile /health is asked again and again, each time
by a new connection. Prints how many were answered, how long that took, and how /health answered. On 127.0.0.1 alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import resource
import select
import socket
import statistics
import time
from dataclasses import dataclass, field

from tests.load.clients import request
from tests.load.health import HealthProbe
from tests.load.process import Server, serving

MAX_CLIENTS = 20_000
TIMEOUT = 120.0  # seconds for all of them
SETTINGS = {"MODEL": "synthetic:?tokens_per_s=0", "SLOTS": "64", "QUEUE": str(MAX_CLIENTS)}
CHAT = request(
    "/v1/chat/completions",
    json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).encode(),
)


@dataclass(slots=True)
class Storm:
    """The outcomes of the clients: how many had which status or error, and how long each waited for its answer."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def n_refused(self) -> int:
        return self.outcomes.total() - self.outcomes["200"]


def blow(address: tuple[str, int], n_clients: int, timeout: float = TIMEOUT) -> Storm:
    """Connects all clients as fast as one thread can, sends a chat from each, and reads the answers."""
    storm, epoll, began = Storm(), select.epoll(), time.monotonic()
    clients: dict[int, socket.socket] = {}
    for _ in range(n_clients):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(address)
        epoll.register(client.fileno(), select.EPOLLOUT)
        clients[client.fileno()] = client
    while clients and time.monotonic() < began + timeout:
        for fd, event in epoll.poll(1.0):
            if event & select.EPOLLOUT and not event & (select.EPOLLERR | select.EPOLLHUP):
                clients[fd].send(CHAT)
                epoll.modify(fd, select.EPOLLIN)
                continue
            epoll.unregister(fd)
            with clients.pop(fd) as client:
                storm.outcomes[_outcome(client)] += 1
            storm.seconds.append(time.monotonic() - began)
    for client in clients.values():
        storm.outcomes["no answer"] += 1
        client.close()
    epoll.close()
    return storm


def _outcome(client: socket.socket) -> str:
    try:
        status = client.recv(65_536)[9:12].decode()
    except OSError as error:
        return str(error)
    return status or "closed"


def measure(server: Server, n_clients: int) -> tuple[Storm, list[float]]:
    """The storm, and the seconds that each answer of /health took while it lasted."""
    health = HealthProbe(server.address)
    health.start()
    storm = blow(server.address, n_clients)
    return storm, sorted(health.stop())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=5000, help=f"at most {MAX_CLIENTS}")
    n_clients = min(parser.parse_args().clients, MAX_CLIENTS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serving(SETTINGS) as server:
        storm, health = measure(server, n_clients)
    rows = {
        "clients that connect at once": n_clients,
        "answered / refused": f"{storm.outcomes['200']} / {storm.n_refused} {dict(storm.outcomes)}",
        "seconds until the last answer": f"{max(storm.seconds):.1f}",
        "/health answers": len(health),
        "/health p50 / p99 / worst (ms)": " / ".join(
            f"{1000 * value:.0f}" for value in (statistics.median(health), health[int(0.99 * len(health))], health[-1])
        ),
    }
    for name, value in rows.items():
        print(f"{name:46} {value}", flush=True)
    if storm.n_refused or health[-1] > 1.0:
        raise SystemExit("clients were refused, or /health took longer than a second")


if __name__ == "__main__":
    main()
