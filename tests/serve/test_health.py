"""GET /health answers at once, and tells the truth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, chat, request
from tests.support.waiting import eventually


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A model file whose reading goes on until somebody writes into it."""
    path = tmp_path / "endless.gguf"
    os.mkfifo(path)
    yield path
    # Whoever still waits for it gets an empty file.
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.close(descriptor)


def test_health_is_ok_when_jobs_are_taken(server: Server) -> None:
    for path in ("/health", "/v1/health"):
        assert server.get(path) == (200, {"status": "ok", "state": "ready"})


def test_while_the_model_loads_health_says_so_and_requests_are_told_to_come_back(start: Servers, fifo: Path) -> None:
    server = start.start(model=fifo, wait_for="starting")

    with server.connect() as connection:
        for answer in (
            connection.ask("GET", "/health"),
            connection.post(chat(max_tokens=1)),
            connection.post(chat(max_tokens=1, stream=True)),
        ):
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.error["type"] == "unavailable_error"
            assert "loading" in answer.error["message"]
        assert connection.ask("GET", "/metrics").status == 200
        [listed] = connection.ask("GET", "/v1/models").json["data"]
        assert listed["status"]["value"] == "loading"

    assert server.get("/health/live") == (200, {"status": "alive"})
    fifo.write_bytes(b"no model after all")
    server.wait_until("failed")
    assert server.get("/health/live") == (200, {"status": "alive"})


@pytest.mark.model
def test_the_real_model_goes_from_starting_to_ok(start: Servers, tmp_path: Path) -> None:
    """With no verdict remembered the probe runs first, in a process of its own: seconds in which health answers."""
    server = start.start(model="", ctx=256, slots=1, wait_for=None, XDG_CACHE_HOME=tmp_path / "fresh")
    seen = [eventually(server.health)]

    while seen[-1] != "ok":
        if (status := server.health()) != seen[-1]:
            seen.append(status)
        assert len(seen) < 4

    assert seen == ["starting", "ok"]
    assert (tmp_path / "fresh" / "corosrv" / "probe.json").is_file()


def test_health_says_busy_while_every_slot_is_taken_and_stays_200(start: Servers) -> None:
    server = start.start(slots=2)
    with server.connect() as first, server.connect() as second:
        first.send(request("POST", CHAT, chat(stream=True)))
        server.wait_metric("running", 1)
        assert server.get("/health") == (200, {"status": "ok", "state": "ready"})

        second.send(request("POST", CHAT, chat(stream=True)))
        server.wait_metric("running", 2)
        assert server.get("/health") == (200, {"status": "ok", "state": "busy"})

        first.leave()
        second.leave()
    eventually(lambda: server.get("/health") == (200, {"status": "ok", "state": "ready"}))


def test_health_answers_while_two_hundred_streams_run(start: Servers) -> None:
    server = start.start(slots=200, model="synthetic:?tokens_per_s=10")
    streams = [server.connect() for _ in range(200)]
    for connection in streams:
        connection.send(request("POST", CHAT, chat(stream=True)))
    server.wait_metric("running", 200)

    assert [server.health() for _ in range(40)] == ["ok"] * 40

    assert server.metric("open_streams") == 200  # which have minutes to go
    for connection in streams:
        connection.leave()


def test_health_is_answered_while_clients_connect_in_a_burst_and_say_nothing(start: Servers) -> None:
    server = start.start()
    idle = [server.connect() for _ in range(300)]

    for connection in idle[:150]:
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")

    assert server.get("/health", timeout=5)[1]["status"] == "ok"  # half of what those may take to say something
    for connection in idle:
        connection.leave()
