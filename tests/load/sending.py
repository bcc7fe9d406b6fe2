"""Measures what the system takes for the sending alone, which no server can go below."""

from __future__ import annotations

import contextlib
import socket
import time

N_CONNECTIONS = 100
N_ROUNDS = 50
EVENT_BYTES = 231  # an event of a text completion on the synthetic model


def bare_send() -> float:
    """Seconds of processor time for one send over loopback, to connections that nobody reads meanwhile."""
    with contextlib.ExitStack() as open_ends:
        pairs = [_connection(open_ends) for _ in range(N_CONNECTIONS)]
        event = bytes(EVENT_BYTES)
        spent = 0.0
        for _ in range(N_ROUNDS):
            began = time.thread_time()
            for server, _ in pairs:
                server.send(event)
            spent += time.thread_time() - began
            for _, client in pairs:
                client.recv(EVENT_BYTES)
    return spent / N_ROUNDS / N_CONNECTIONS


def _connection(open_ends: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = open_ends.enter_context(socket.create_connection(listener.getsockname(), timeout=10))
        server, _ = listener.accept()
    open_ends.enter_context(server)
    server.settimeout(0)
    return server, client
