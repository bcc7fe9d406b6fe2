"""SIGTERM: what runs may finish, what comes is refused, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve.server import APP, GUNICORN, SERVE, Process, Server, Servers
from tests.serve.wire import CHAT, Connection, chat, events, request
from tests.support.waiting import eventually

COMMANDS = pytest.mark.parametrize("command", [APP, SERVE], ids=["gunicorn", "serve"])


def begin(server: Server, n_tokens: int) -> Connection:
    """A stream whose first text has come."""
    connection = server.connect()
    connection.send(request("POST", CHAT, chat(stream=True, max_tokens=n_tokens, ignore_eos=True)))
    connection.head()
    assert any(b'"delta":{"content":"' in piece for piece in connection.pieces())
    return connection


def body(connection: Connection) -> bytes:
    return b"".join(connection.pieces())


@pytest.fixture
def gone() -> Callable[[Server, list[int]], None]:
    def check(server: Server, workers: list[int]) -> None:
        for pid in workers:
            eventually(lambda pid=pid: not Process(pid).is_alive, what=f"the end of worker {pid}")  # type: ignore[misc]
        assert "Traceback" not in server.log

    return check


@COMMANDS
def test_a_running_stream_finishes_and_new_requests_are_refused(
    start: Servers, gone: Callable[[Server, list[int]], None], command: tuple[str, ...]
) -> None:
    server = start.start(*command)
    workers = server.workers()
    late_body = request("POST", CHAT, chat(max_tokens=1))
    with begin(server, 130) as stream, server.connect() as late:
        assert late.ask("GET", "/health").status == 200
        late.send(late_body[:-5])  # taken before the signal, complete only after it

        server.signal(signal.SIGTERM)
        eventually(lambda: server.health() in ("draining", ""), what="the signal has come through")
        late.send(late_body[-5:])
        refused = late.answer()

        assert refused.status == 503
        assert refused.error["type"] == "unavailable_error"
        assert "shutting down" in refused.error["message"]
        assert refused.headers["retry-after"]
        assert events(body(stream))[-2]["choices"][0]["finish_reason"] == "length"
    assert server.wait() == 0
    gone(server, workers)


@COMMANDS
def test_a_stream_that_takes_longer_ends_with_an_error_event(
    start: Servers, gone: Callable[[Server, list[int]], None], command: tuple[str, ...]
) -> None:
    server = start.start(*command, drain_s=1)
    workers = server.workers()
    with begin(server, 4000) as stream:
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        *chunks, last = events(body(stream))

    assert 0.8 < time.monotonic() - began < 40  # of the 80 that it would take
    assert last["error"]["message"] == "the server is shutting down"
    assert {"type", "param", "code"} <= set(last["error"])
    assert not any("error" in chunk for chunk in chunks)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert server.wait() == 0
    gone(server, workers)


def test_a_waiting_request_that_is_not_streamed_gets_an_answer_too(start: Servers) -> None:
    server = start.start(drain_s=1, slots=1)
    with begin(server, 4000), server.connect() as waiting:
        waiting.send(request("POST", CHAT, chat(max_tokens=1)))
        server.wait_metric("waiting", 1)

        server.signal(signal.SIGTERM)
        answer = waiting.answer()

    assert (answer.status, answer.error["type"]) == (503, "unavailable_error")
    assert "shutting down" in answer.error["message"]
    assert server.wait() == 0


def test_an_idle_server_ends_at_once(start: Servers, gone: Callable[[Server, list[int]], None]) -> None:
    server = start.start()
    workers = server.workers()

    server.signal(signal.SIGTERM)

    assert server.wait() == 0
    gone(server, workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_server_that_is_still_loading_ends_at_once(start: Servers, tmp_path: Path, number: int) -> None:
    (tmp_path / "endless_app.py").write_text("import time; print('loads', flush=True); time.sleep(1000)")
    front = ("-k", "corosrv.web.http.front.Front", "--no-control-socket", "-b", "127.0.0.1:0")
    server = start.start("gunicorn", *front, "--pythonpath", str(tmp_path), "endless_app", wait_for=None)
    eventually(lambda: "loads" in server.log, what="the worker loads")
    (worker,) = server.workers()

    server.signal(number)

    assert server.wait() == 0
    assert not Process(worker).is_alive


# A libllama that loads for ever, and cannot be told to stop.
LOADING_APP = """
import gevent
from gevent import monkey

from corosrv.models.engine import Engine

Engine.open = lambda engine: gevent.sleep(1000)
Engine.close = lambda engine: monkey.get_original("time", "sleep")(1000)

from corosrv.app import application
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_server_waits_for_no_load_at_its_end(start: Servers, tmp_path: Path, number: int) -> None:
    (tmp_path / "loading_app.py").write_text(LOADING_APP)
    server = start.start(
        *GUNICORN, "-b", "127.0.0.1:0", "--pythonpath", str(tmp_path), "loading_app", wait_for="starting"
    )
    (worker,) = server.workers()

    server.signal(number)

    assert server.wait() == 0
    assert not Process(worker).is_alive
    assert "SIGKILL" not in server.log


@pytest.mark.model
def test_a_trial_of_a_model_ends_with_the_server(start: Servers, tmp_path: Path) -> None:
    server = start.start(model="", slots=1, ctx=256, wait_for=None, XDG_CACHE_HOME=tmp_path)
    (pid,) = eventually(lambda: [pid for pid in server.workers() for pid in Process(pid).children_of("engine.trial")])
    trial = Process(pid)
    eventually(lambda: any(file.endswith(".gguf") for file in [*trial.descriptors(), *trial.files()]), what="it loads")
    os.kill(pid, signal.SIGSTOP)  # so that it cannot end by itself

    server.signal(signal.SIGTERM)

    assert server.wait() == 0
    eventually(lambda: not trial.is_alive, what="the trial's end")


# Stops when it is asked for /stop, and stands still as soon as the stop has begun, until it may go on.
PAUSING_APP = """
import os, signal, gevent
from gevent import monkey

def pause():
    os.kill(os.getpid(), signal.SIGTERM)
    gevent.idle()
    print("stands still", flush=True)
    while not os.path.exists("{go_on}"):
        monkey.get_original("time", "sleep")(0.02)
    monkey.get_original("time", "sleep")(0.5)

def application(environ, start_response):
    if environ["PATH_INFO"] == "/stop":
        gevent.spawn(pause)
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""


def test_what_came_while_a_stopping_server_stood_still_is_answered(start: Servers, tmp_path: Path) -> None:
    (tmp_path / "pausing_app.py").write_text(PAUSING_APP.format(go_on=tmp_path / "go on"))
    front = ("-k", "corosrv.web.http.front.Front", "--no-control-socket", "-b", "127.0.0.1:0")
    server = start.start("gunicorn", *front, "--pythonpath", str(tmp_path), "pausing_app", wait_for=None)
    with server.connect() as idle, server.connect() as stopping:
        assert idle.ask("GET", "/").status == 200
        stopping.send(request("GET", "/stop"))
        eventually(lambda: "stands still" in server.log, what="the pause")
        with server.connect() as new:
            for connection in (idle, new):
                connection.send(request("GET", "/"))
            (tmp_path / "go on").touch()

            assert [connection.answer().status for connection in (idle, new)] == [200, 200]


# Is told to stop when the answer to /stop was sent, and nothing has happened since.
STOPPED_APP = """
import os, signal

class Body(list):
    def close(self):
        os.kill(os.getpid(), signal.SIGTERM)

def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return (Body if environ["PATH_INFO"] == "/stop" else list)([b"ok"])
"""


def test_a_request_that_came_before_the_stop_is_answered_though_it_waited_behind_another(
    start: Servers, tmp_path: Path
) -> None:
    (tmp_path / "stopped_app.py").write_text(STOPPED_APP)
    front = ("-k", "corosrv.web.http.front.Front", "--no-control-socket", "-b", "127.0.0.1:0")
    server = start.start("gunicorn", *front, "--pythonpath", str(tmp_path), "stopped_app", wait_for=None)
    with server.connect() as connection:
        connection.send(request("GET", "/stop") + request("GET", "/"))

        assert connection.answer().status == 200
        last = connection.answer()

        assert last.status == 200
        assert last.headers["connection"] == "close"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name)
@COMMANDS
def test_a_second_signal_ends_it_quickly(
    start: Servers, gone: Callable[[Server, list[int]], None], second: int, command: tuple[str, ...]
) -> None:
    server = start.start(*command)
    workers = server.workers()
    with begin(server, 4000) as stream:
        server.signal(signal.SIGTERM)
        eventually(lambda: server.health() in ("draining", ""), what="the first signal has come through")

        server.signal(second)

        assert server.wait() == 0
        stream.leave()
    gone(server, workers)


@pytest.mark.model
def test_the_real_model_ends_cleanly_in_mid_decode(start: Servers, gone: Callable[[Server, list[int]], None]) -> None:
    server = start.start(model="", ctx=512, slots=2, threads=1, drain_s=0)
    workers = server.workers()
    with begin(server, 400) as stream:
        server.signal(signal.SIGTERM)
        assert "error" in events(body(stream))[-1]

    assert server.wait() == 0
    gone(server, workers)


def test_a_killed_worker_is_replaced(start: Servers) -> None:
    server = start.start()
    worker = server.worker
    stream = begin(server, 4000)

    worker.kill()

    eventually(lambda: [pid for pid in server.workers() if pid != worker.pid], what="another worker")
    server.wait_until("ok")
    with server.connect() as connection:
        assert connection.post(chat(max_tokens=1)).status == 200
    stream.leave()


def test_a_worker_ends_with_its_master(start: Servers) -> None:
    server = start.start(*GUNICORN, "-b", "127.0.0.1:0", "corosrv.app")
    (worker,) = server.workers()

    server.signal(signal.SIGKILL)
    server.wait()

    eventually(lambda: not Process(worker).is_alive, what="the worker has noticed")
