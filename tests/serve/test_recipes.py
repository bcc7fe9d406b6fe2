"""The recipes of the project's seed: streams interleave, arrive as they are made, and are left without a trace."""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.serve.server import Server, eventually
from tests.serve.wire import CHAT, chat, request


def arrivals(server: Server, barrier: threading.Barrier, n_tokens: int) -> list[float]:
    """When each piece of text of one stream came."""
    with server.connect() as connection:
        barrier.wait(10)
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=n_tokens)))
        assert connection.head().status == 200
        return [time.monotonic() for piece in connection.pieces() if b'"delta":{"content":"' in piece]


def test_three_concurrent_requests_interleave(server: Server) -> None:
    barrier = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        streams = list(pool.map(lambda _: arrivals(server, barrier, 50), range(3)))

    order = [number for _, number in sorted((at, number) for number, times in enumerate(streams) for at in times)]
    turns = sum(a != b for a, b in itertools.pairwise(order))
    assert len(order) > 75
    assert turns > len(order) / 3, f"one after the other: {order}"
    assert max(times[0] for times in streams) < min(times[-1] for times in streams)


def test_a_stream_arrives_as_it_is_made(server: Server) -> None:
    began = time.monotonic()

    times = arrivals(server, threading.Barrier(1), 50)

    assert times[0] - began < 0.3
    assert times[-1] - times[0] > 0.7  # 49 gaps of 20 ms, less what a busy machine catches up
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert sum(gap > 0.005 for gap in gaps) > len(gaps) / 2, "it came in few pieces"


def test_leaving_early_leaks_neither_slot_nor_descriptor(server: Server) -> None:
    server.wait_idle()
    before, cancelled = server.worker.n_descriptors(), server.cancelled()

    for _ in range(20):
        connection = server.connect()
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=2000)))
        connection.head()
        first = next(connection.pieces())
        assert json.loads(first.removeprefix(b"data: "))["choices"][0]["delta"]["role"] == "assistant"
        connection.leave()

    server.wait_idle()
    assert server.cancelled() == cancelled + 20
    eventually(lambda: server.worker.n_descriptors() <= before, what="as few descriptors as before")
