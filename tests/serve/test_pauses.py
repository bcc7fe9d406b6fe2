"""A server that stands still for a while, as `docker pause` and a snapshot of the machine make it, punishes nobody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.serve.server import APP, DEPLOYED, REPOSITORY, Servers
from tests.serve.wire import CHAT, chat, events, request, text_of
from tests.support.waiting import eventually

PAUSE = 4.0  # seconds: longer than all limits below
LIMITS = {"head_timeout_s": 1, "body_timeout_s": 2, "write_timeout_s": 2, "queue_timeout_s": 2, "stall_timeout_s": 2}
OPTIONS = ("--timeout", "3", "--keep-alive", "2")  # seconds until the master kills a silent worker, and of idleness
# The file of deploy/, with workers that are not silent while they boot, which takes longer than that on a busy machine.
SETTINGS = f"""
import signal

exec(open({str(REPOSITORY / "deploy" / "gunicorn.conf.py")!r}).read())


def post_fork(arbiter, worker):
    def beat(number, frame):
        worker.tmp.notify()
        if worker.booted:
            signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, beat)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
"""


@pytest.fixture
def deployed(tmp_path: Path) -> tuple[str, ...]:
    """The command of a server, without its application."""
    file = tmp_path / "gunicorn.conf.py"
    file.write_text(SETTINGS)
    return (*(str(file) if word.endswith("gunicorn.conf.py") else word for word in DEPLOYED[:-1]), *OPTIONS)


@contextmanager
def paused(pid: int, signal_to: Callable[[int, int], None] = os.killpg, seconds: float = PAUSE) -> Iterator[None]:
    """Stops a session's processes for some seconds, and lets them go on."""
    end = time.monotonic() + seconds
    signal_to(pid, signal.SIGSTOP)
    try:
        yield
        time.sleep(max(0.0, end - time.monotonic()))  # the pause itself
    finally:
        signal_to(pid, signal.SIGCONT)


def test_requests_and_answers_survive_a_pause_of_the_server(start: Servers, deployed: tuple[str, ...]) -> None:
    server = start.start(*deployed, "corosrv.app", **LIMITS)
    worker = server.worker
    whole = request("POST", CHAT, chat(max_tokens=3))
    with ExitStack() as stack:
        slow = stack.enter_context(server.connect(receive_buffer=4096, timeout=20))
        slow.send(request("GET", "/openapi.json"))
        document = slow.head()
        # From here on the limits count: no more is done than has to be.
        stream, kept, half, begun, new = (stack.enter_context(server.connect(timeout=20)) for _ in range(5))
        stream.send(request("POST", CHAT, chat(stream=True, max_tokens=20)))
        pieces = stream.body(stream.head())
        first = next(pieces)
        assert kept.ask("GET", "/health").status == 200
        half.send(whole[:-10])
        begun.send(whole[:30])

        with paused(server.pid):
            kept.send(whole)
            new.send(whole)
            half.send(whole[-10:-5])
        half.send(whole[-5:])
        begun.send(whole[30:])

        assert [connection.answer().status for connection in (kept, new, half, begun)] == [200] * 4
        assert text_of(events(first + b"".join(pieces))) != ""
        assert len(b"".join(slow.body(document))) > 10_000
    assert server.worker.pid == worker.pid
    assert "Traceback" not in server.log


def test_a_stream_that_was_not_read_when_the_server_paused_goes_on(start: Servers, deployed: tuple[str, ...]) -> None:
    server = start.start(*deployed, "corosrv.app", **LIMITS, model="synthetic:?tokens_per_s=0", reader_bytes=1024)
    body = chat(stream=True, max_tokens=2000, logprobs=True, top_logprobs=20)
    with server.connect(receive_buffer=4096, timeout=20) as slow:
        slow.send(request("POST", CHAT, body))
        head = slow.head()
        server.wait_metric("paused", 1)

        with paused(server.pid):
            pass

        assert events(b"".join(slow.body(head)))[-1] == "[DONE]"


def test_a_slow_stream_of_one_of_several_worker_processes_goes_on_behind_a_pause(
    start: Servers, deployed: tuple[str, ...], tmp_path: Path
) -> None:
    # The first of them stands still until the last does, on a busy machine for seconds, and may not be ended meanwhile.
    limits = {**LIMITS, "stall_timeout_s": 8}
    settings = {**limits, "model": "synthetic:?tokens_per_s=0", "reader_bytes": 1024, "run_dir": tmp_path}
    server = start.start(*deployed, "-w", "3", "corosrv.app", **settings)
    engine, workers = server.engine, server.workers()
    body = chat(stream=True, max_tokens=2000, logprobs=True, top_logprobs=20)
    with ExitStack() as stack:
        slow = [stack.enter_context(server.connect(receive_buffer=4096, timeout=30)) for _ in range(6)]
        for connection in slow:
            connection.send(request("POST", CHAT, body))
        heads = [connection.head() for connection in slow]
        server.wait_metric("paused", 6)

        with paused(server.pid, seconds=10), paused(engine.pid, seconds=10):
            pass

        # All at once: one that is not read until the others are over stands still, on a busy machine for too long.
        with ThreadPoolExecutor(len(slow)) as readers:
            bodies = readers.map(lambda connection, head: b"".join(connection.body(head)), slow, heads)
            ends = [events(body)[-1] for body in bodies]
    assert ends == ["[DONE]"] * 6
    assert (server.engine.pid, server.workers()) == (engine.pid, workers)
    with server.connect() as connection:
        assert connection.post(chat(max_tokens=3)).status == 200


def test_a_client_that_sends_nothing_more_is_refused_in_spite_of_a_pause(
    start: Servers, deployed: tuple[str, ...]
) -> None:
    server = start.start(*deployed, "corosrv.app", **LIMITS)
    with server.connect(timeout=20) as half:
        half.send(request("POST", CHAT, chat())[:-5])
        with paused(server.pid):
            pass

        answer = half.answer()

    assert (answer.status, answer.error["code"]) == (408, "request_timeout")


def test_a_worker_that_was_stopped_alone_is_not_killed(start: Servers, deployed: tuple[str, ...]) -> None:
    server = start.start(*deployed, "corosrv.app")
    worker = server.worker
    with paused(worker.pid, os.kill, 7.0):  # the master looks once a second, and may have missed a heartbeat before
        pass

    assert server.get("/health")[0] == 200
    assert server.worker.pid == worker.pid


def test_a_worker_that_serves_survives_the_abort_of_a_master_that_was_paused(start: Servers) -> None:
    """gunicorn's own master, without corosrv's settings, aborts every worker when it wakes."""
    server = start.start(*APP)
    worker = server.worker

    os.kill(worker.pid, signal.SIGABRT)

    eventually(lambda: "pause" in server.log, what="a line in the log")
    assert server.get("/health")[0] == 200
    assert server.worker.pid == worker.pid


@pytest.mark.holds_the_hub("a route that never ends")
def test_a_worker_that_hangs_is_killed(start: Servers, deployed: tuple[str, ...]) -> None:
    server = start.start(*deployed, "tests.support.hanging_app:application")
    worker = server.worker
    with server.connect() as connection:
        connection.send(request("GET", "/hang"))

        eventually(lambda: not worker.is_alive, 20, "the worker is killed")

    server.wait_until("ok")
