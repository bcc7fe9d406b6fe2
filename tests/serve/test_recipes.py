"""The recipes of the project's seed: streams interleave, arrive as they are made, and are left without a trace."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack

from tests.serve.server import Server
from tests.serve.wire import CHAT, chat, request
from tests.support.waiting import eventually

ENDLESS = 4000  # tokens, which take 80 s: no test waits for the last of them


def open_stream(server: Server, stack: ExitStack) -> Iterator[bytes]:
    """Asks for an endless stream, and yields its pieces of text as they come."""
    connection = stack.enter_context(server.connect())
    connection.send(request("POST", CHAT, chat(stream=True, max_tokens=ENDLESS)))
    assert connection.head().status == 200
    return (piece for piece in connection.pieces() if b'"delta":{"content":"' in piece)


def test_three_concurrent_requests_interleave(server: Server) -> None:
    with ExitStack() as stack:
        streams = [open_stream(server, stack) for _ in range(3)]

        for stream in streams * 5:  # none of them is over before all others have come this far
            assert next(stream)
        assert server.metric("running") == 3
    server.wait_idle()


def test_a_stream_arrives_as_it_is_made(server: Server) -> None:
    with ExitStack() as stack:
        stream = open_stream(server, stack)

        assert len(list(itertools.islice(stream, 10))) == 10
        assert server.metric("running") == 1  # it goes on
    server.wait_idle()


def test_leaving_early_leaks_neither_slot_nor_descriptor(server: Server) -> None:
    server.wait_idle()
    before, cancelled = server.worker.n_descriptors(), server.cancelled()

    for _ in range(20):
        connection = server.connect()
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=2000)))
        connection.head()
        (first, *_) = next(connection.pieces()).split(b"\n\n")  # one piece may carry several events
        assert json.loads(first.removeprefix(b"data: "))["choices"][0]["delta"]["role"] == "assistant"
        connection.leave()

    server.wait_idle()
    assert server.cancelled() == cancelled + 20
    eventually(lambda: server.worker.n_descriptors() <= before, what="as few descriptors as before")
