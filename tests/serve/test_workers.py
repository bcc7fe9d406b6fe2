"""Several processes, forks, and what the engine says about them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.serve.server import APP, SERVE, START_SECONDS, Process, Server, Servers
from tests.serve.wire import chat
from tests.support.waiting import eventually


@pytest.mark.parametrize("command", [(*APP, "-w", "2"), (*SERVE, "-w", "2")], ids=["gunicorn", "serve"])
def test_each_worker_has_an_engine_of_its_own_if_told_so_and_the_log_says_it(
    start: Servers, command: tuple[str, ...]
) -> None:
    server = start.start(*command, engine="inproc")
    workers = eventually(lambda: both if len(both := server.workers()) == 2 else None, what="both workers")

    def engines() -> bool:
        ready = re.findall(r"engine ready in .* in process (\d+) alone", server.log)
        return sorted(map(int, ready)) == sorted(workers)

    eventually(engines, START_SECONDS, "a line for each worker")
    with server.connect() as connection:
        assert connection.post(chat(max_tokens=3)).status == 200
    assert re.search(r"several worker processes: process \d+ loads its own copy of the model", server.log)


def test_requests_come_to_both_workers_and_both_answer_alike(start: Servers) -> None:
    server = start.start(*APP, "-w", "2", engine="inproc")
    texts, processes = set(), set()

    def ask() -> bool:
        with server.connect() as connection:
            answer = connection.post(chat(max_tokens=5))
        if answer.status == 503:  # this one is still loading
            return False
        texts.add(answer.json["choices"][0]["message"]["content"])
        processes.update(re.findall(r"several worker processes: process (\d+)", server.log))
        return len(processes) == 2

    eventually(ask, START_SECONDS, "an answer from each of the two")

    assert len(texts) == 1


def test_an_engine_opened_before_the_fork_is_refused_in_words(start: Servers) -> None:
    server = start.start(*APP, "--preload", wait_for="failed")

    with server.connect() as connection:
        health = connection.ask("GET", "/health")
        answers = [health, connection.post(chat(max_tokens=1)), connection.post(chat(max_tokens=1, stream=True))]
        assert connection.ask("GET", "/metrics").status == 200

    for answer in answers:
        assert answer.status == 503
        assert "--preload" in answer.error["message"]
    assert server.worker.is_alive
    assert "Traceback" not in server.log


@pytest.mark.model
def test_the_real_model_opened_before_the_fork_is_refused_too(start: Servers) -> None:
    server = start.start(*APP, "--preload", model="", ctx=256, slots=1, threads=1, wait_for="failed")

    assert "--preload" in server.get("/health")[1]["error"]["message"]
    assert server.worker.is_alive


def n_eventfds(process: Process) -> int:
    return sum("eventfd" in descriptor for descriptor in process.descriptors())


def test_each_open_stream_holds_one_eventfd_and_gives_it_back(start: Servers) -> None:
    server: Server = start.start()
    body: dict[str, Any] = chat(stream=True)
    with server.client() as client:
        streams = [client.chat.completions.create(model="", **body) for _ in range(10)]
        server.wait_metric("readers", 10)
        n_open = n_eventfds(server.worker)
        for stream in streams:
            stream.close()

    server.wait_idle()
    eventually(lambda: n_eventfds(server.worker) == n_open - 10, what="ten eventfds less")


def test_a_misspelt_setting_is_told(start: Servers) -> None:
    server = start.start(slotts=3)

    assert "unknown setting ignored: COROSRV_SLOTTS (did you mean COROSRV_SLOTS?)" in server.log


def test_serve_refuses_to_listen_beyond_this_machine_without_a_key(start: Servers) -> None:
    with pytest.raises(AssertionError, match=r"0\.0\.0\.0 can be reached by others: set COROSRV_API_KEYS"):
        start.start(*SERVE, "--host", "0.0.0.0")


def test_serve_takes_settings_from_the_command_line(start: Servers) -> None:
    server = start.start(*SERVE, "--slots", "3", "--model-alias", "mine", slots=7)

    assert server.metric("slots") == 3
    assert server.get("/v1/models")[1]["data"][0]["id"] == "mine"
