"""Rows 95 to 100: what the process itself runs out of, and how it is told to end."""

from __future__ import annotations

import ast
import gc
import os
import resource
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gevent
import pytest
from gevent import monkey
from gevent.event import Event

import corosrv
from corosrv.web.http.metrics import BLOCKED, HubLag
from tests.serve.server import APP, DEPLOYED, GUNICORN, SERVE, START_SECONDS, Server, Servers
from tests.serve.wire import CHAT, Connection, chat, events, request
from tests.support.waiting import eventually


def begin(server: Server, n_tokens: int) -> Connection:
    connection = server.connect()
    connection.send(request("POST", CHAT, chat(stream=True, max_tokens=n_tokens)))
    server.wait_metric("running", 1)
    return connection


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def seconds_of(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def block_the_hub() -> None:
    monkey.get_original("time", "sleep")(0.6)


def lags_of_a_hub_blocked_twice(block: Callable[[], object] = block_the_hub) -> list[float]:
    """In a thread, and so a hub, of its own."""
    lags: list[float] = []
    blocked: list[None] = []
    looked = Event()

    def observe(seconds: float) -> None:
        lags.append(seconds)
        looked.set()

    lag = HubLag(observe, lambda: blocked.append(None))
    gevent.get_hub()
    lag.start()
    for n in (1, 2):
        with gevent.Timeout(10):
            while len(blocked) < n:
                looked.clear()
                looked.wait()
                gevent.sleep(0.23)  # the next look is due soon: what ends before it delays nobody
                looked.clear()
                gevent.spawn(block).join(5)
                looked.wait()
    lag.stop()
    gevent.get_hub().destroy()
    return lags


def test_h076_who_blocks_the_hub_is_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1) as threads:
        lags = threads.submit(lags_of_a_hub_blocked_twice).result(20)

    assert max(lags) > BLOCKED
    (line,) = [record.getMessage() for record in caplog.records]
    assert "block_the_hub" in line


def test_h076_the_collector_is_named_where_it_blocked_the_hub(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[list[list[None]]] = []
    while seconds_of(gc.collect) < 2 * BLOCKED:  # how much that takes is up to the processor
        kept.append([[] for _ in range(2_000_000)])

    with ThreadPoolExecutor(1) as threads:
        threads.submit(lags_of_a_hub_blocked_twice, gc.collect).result(20)

    (line,) = [record.getMessage() for record in caplog.records]
    assert "the garbage collector: generation 2 took" in line
    kept.clear()  # alive up to here; none were needed where the process had enough of its own


def test_h076_a_server_that_is_asked_says_how_late_it_is(attacked: Server) -> None:
    with attacked.connect() as connection:
        assert connection.post(chat(max_tokens=30)).status == 200

    assert attacked.metric("hub_blocked_total") >= 0
    assert attacked.metric("hub_lag_seconds_count") >= 1


def test_h095_without_descriptors_accepting_pauses_and_comes_back(start: Servers) -> None:
    server = start.start()
    worker = server.worker
    limit = worker.n_descriptors() + 10
    with server.connect() as kept:
        assert kept.ask("GET", "/health").status == 200
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (limit, limit))
        began, cpu = time.monotonic(), cpu_seconds(worker.pid)
        clients = [server.connect() for _ in range(60)]
        while time.monotonic() - began < 1.5:
            assert kept.ask("GET", "/health").status == 200
            assert not kept.has_input(0.1)
        spent = cpu_seconds(worker.pid) - cpu
        for client in clients:
            client.leave()

        eventually(lambda: server.health() == "ok", what="it accepts again")

    assert spent < 0.7, "it spins"
    assert "no file descriptor was left for a client" in server.log
    assert "Traceback" not in server.log
    assert server.worker.pid == worker.pid


def test_h072_without_descriptors_who_is_connected_is_answered(start: Servers) -> None:
    server = start.start()
    worker = server.worker
    with server.connect() as connection:
        assert connection.post(chat(max_tokens=1)).status == 200
        # No number below the limit is free: the worker opens nothing any more, and keeps what it has.
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (3, 10_000))
        whole = connection.post(chat(max_tokens=5))
        streamed = connection.post(chat("once " * 500, max_tokens=5, stream=True))
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (10_000, 10_000))

    assert (whole.status, whole.json["usage"]["completion_tokens"]) == (200, 5)
    assert streamed.status == 200
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert server.metric("readers_polled_total") == 2
    assert server.log.count("open files is too low") == 1


@pytest.mark.parametrize("command", [SERVE, DEPLOYED], ids=["serve", "deployed"])
def test_h096_a_second_sigterm_ends_it_quickly(start: Servers, command: tuple[str, ...]) -> None:
    server = start.start(*command)
    stream = begin(server, 4000)
    server.signal(signal.SIGTERM)
    eventually(lambda: server.health() in ("draining", ""), what="the first signal has come through")

    server.signal(signal.SIGTERM)

    assert server.wait() == 0
    stream.leave()


def test_h096_a_second_sigterm_to_the_worker_ends_its_streams(start: Servers) -> None:
    server = start.start(*GUNICORN, "-b", "127.0.0.1:0", "corosrv.app", drain_s=60)
    worker = server.worker
    with begin(server, 4000) as stream:
        head = stream.head()
        for _ in range(2):
            os.kill(worker.pid, signal.SIGTERM)
            eventually(lambda: server.log.count("stopping:") >= 1, what="it has heard")

        sent = events(b"".join(stream.body(head)))

    assert "shutting down" in sent[-1]["error"]["message"]


def test_h096_a_reader_that_stalls_does_not_keep_it(start: Servers) -> None:
    server = start.start(*SERVE, drain_s=1, ctx=100_000, model="synthetic:?tokens_per_s=20000")
    stalled = server.connect(receive_buffer=2048)
    stalled.send(request("POST", CHAT, chat(stream=True, max_tokens=90_000)))
    server.wait_metric("running", 1)

    server.signal(signal.SIGTERM)

    assert server.wait() == 0
    stalled.leave()


def test_h094_what_clients_write_stays_in_its_line_of_few_lines(start: Servers, tmp_path: Path) -> None:
    server = start.start(model=str(tmp_path / "none.gguf"), unloadable_s=-1, wait_for="failed")
    before = server.log.count("\n")
    with server.connect() as connection:
        for _ in range(300):
            assert connection.ask("GET", "/v1/models/a%0d2026-01-01%20[INFO]%20forged%1b[31m").status == 503

    written = server.log_file.read_bytes()
    assert b"forged" in written
    assert not set(written) & set(b"\r\x1b")
    assert server.log.count("\n") - before < 30


@pytest.mark.model
def test_h094_a_folder_that_cannot_be_written_is_told_and_harms_nobody(start: Servers, tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    server = start.start(model="", ctx=256, slots=1, threads=1, slot_save_path=folder)
    with server.connect() as connection:
        assert connection.post({"prompt": "word " * 40, "n_predict": 2}, "/completion").status == 200
        folder.rmdir()
        answer = connection.post({"filename": "kept"}, "/slots/0?action=save")

        assert (answer.status, answer.error["type"]) == (503, "unavailable_error"), answer.body
        assert str(tmp_path) not in answer.error["message"]
        assert connection.post(chat(max_tokens=1)).status == 200


def test_h096_a_stop_while_the_worker_is_being_made_is_not_forgotten(start: Servers) -> None:
    server = start.start(*SERVE, wait_for=None, drain_s=60)

    server.signal(signal.SIGTERM)

    assert server.wait() == 0


@pytest.mark.parametrize("n", [1, 2])
def test_h096_an_interrupt_from_a_terminal_leaves_no_traceback(start: Servers, n: int) -> None:
    """It reaches the worker twice: from the terminal, and from the master."""
    server = start.start(*SERVE, drain_s=1)
    with begin(server, 4000):
        for _ in range(n):
            os.killpg(server.pid, signal.SIGINT)

        assert server.wait() == 0
    assert "Traceback" not in server.log


def test_h096_the_first_interrupt_from_a_terminal_lets_answers_end(start: Servers) -> None:
    server = start.start(*SERVE, drain_s=20)
    with begin(server, 100) as stream:
        os.killpg(server.pid, signal.SIGINT)

        assert events(b"".join(stream.body(stream.head())))[-1] == "[DONE]"
    assert server.wait() == 0
    assert "running answers get 20 s to finish" in server.log


def test_h096_a_connection_whose_stream_was_ended_does_not_keep_it(start: Servers) -> None:
    server = start.start(*APP, "--keep-alive", "60", drain_s=0)
    with begin(server, 4000):
        server.signal(signal.SIGTERM)

        assert server.wait() == 0


def test_h096_clients_that_ask_nothing_do_not_keep_it(start: Servers) -> None:
    server = start.start(*APP, "--keep-alive", "60")
    with server.connect() as idle:
        assert idle.ask("GET", "/health").status == 200

        server.signal(signal.SIGTERM)

        assert server.wait() == 0


def test_h097_a_stream_lives_through_sighup(start: Servers) -> None:
    server = start.start()
    before = server.workers()
    with begin(server, 150) as stream:
        server.signal(signal.SIGHUP)
        eventually(
            lambda: server.health() == "ok" and server.workers() != before, START_SECONDS, "another worker serves"
        )

        assert events(stream.answer().body)[-1] == "[DONE]"
    eventually(lambda: before[0] not in server.workers(), what="the first one has ended")


def test_h100_the_wall_clock_tells_dates_and_nothing_else() -> None:
    package = Path(corosrv.__file__).parent
    files = [file for file in package.rglob("*.py") if "bench" not in file.relative_to(package).parts]
    # How long an answer took, for gunicorn's access log; the date that chat templates ask for; when predictions and
    # their worker's set-up began and ended; the dates in answers of Ollama's API; the moment of a picture, of a line of
    # the access log, of an exemplar; the date until which a batch runs, also after a restart, and that of a file that
    # nobody writes to.
    dated = {
        "served_client.py",
        "jinja_template.py",
        "sandbox.py",
        "prediction.py",
        "setup.py",
        "answers.py",
        "live.py",
    }
    moments = {"live.py", "access_log.py", "runner.py", "running.py", "folder.py"}
    exemplars = package / "contracts" / "metrics.py"
    for file in files:
        code = ast.unparse(ast.parse(file.read_text()))

        whole_seconds, milliseconds = code.count("int(time.time())"), code.count("expires_ms = round((time.time() + ")
        assert code.count("time.time()") == whole_seconds + milliseconds or file.name in moments or file == exemplars, (
            file
        )
        assert "datetime.now(" not in code or file.name in dated, file
