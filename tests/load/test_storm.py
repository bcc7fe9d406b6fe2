"""Many clients that connect in the same instant."""

from __future__ import annotations

import os
import select
import signal
from contextlib import ExitStack

from tests.load.storm import SETTINGS, blow
from tests.serve.conftest import cache, start  # noqa: F401
from tests.serve.server import SERVE, Servers
from tests.serve.wire import request

N_CLIENTS = 300


def test_a_storm_of_clients_is_answered(start: Servers) -> None:  # noqa: F811
    server = start.start(*SERVE, **{f"COROSRV_{name}": value for name, value in SETTINGS.items()})

    storm = blow(("127.0.0.1", server.port), N_CLIENTS)

    assert storm.outcomes == {"200": N_CLIENTS}


def test_health_does_not_stand_behind_those_who_connected_before(start: Servers) -> None:  # noqa: F811
    server = start.start(*SERVE)
    answered = select.epoll()
    with ExitStack() as stack, answered:
        os.kill(server.worker.pid, signal.SIGSTOP)
        clients = [stack.enter_context(server.connect()) for _ in range(N_CLIENTS)]
        for client in clients:
            client.send(request("GET", "/v1/models"))
        probe = stack.enter_context(server.connect())
        probe.send(request("GET", "/health"))
        for connection in (*clients, probe):
            answered.register(connection.socket, select.EPOLLIN | select.EPOLLONESHOT)

        os.kill(server.worker.pid, signal.SIGCONT)

        # epoll tells of descriptors in the order in which they became readable, however late it is asked.
        order = [fd for _ in range(N_CLIENTS + 1) for fd, _ in answered.poll(10, 1)]
        assert len(order) == N_CLIENTS + 1
        assert order.index(probe.socket.fileno()) < N_CLIENTS / 2
