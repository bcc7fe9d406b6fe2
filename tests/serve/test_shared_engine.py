"""Several worker processes with one engine: a client cannot tell which of them has answered."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import APP, SERVE, Process, Server, Servers, servers
from tests.serve.wire import chat, request
from tests.support.waiting import eventually


@contextmanager
def short_folder() -> Iterator[str]:
    """A folder whose path leaves room for sockets' names."""
    folder = tempfile.mkdtemp(prefix="corosrv-")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def run_dir() -> Iterator[str]:
    with short_folder() as folder:
        yield folder


def start_three(servers: Servers, run_dir: str, model: str) -> Server:
    """Three workers, all of which are there."""
    server = servers.start(*APP, "-w", "3", run_dir=run_dir, model=model)
    eventually(lambda: server.log.count("model synthetic: loaded") == 3, what="three workers")
    return server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    """A server of all tests that do it no harm."""
    with short_folder() as run_dir, servers(tmp_path_factory.mktemp("shared"), cache) as started:
        yield start_three(started, run_dir, "synthetic:?tokens_per_s=100")


@pytest.fixture
def own(start: Servers, run_dir: str) -> Server:
    """A server of one test, with an engine of its own."""
    return start_three(start, run_dir, "synthetic:?tokens_per_s=100")


def engine_of(server: Server) -> Process:
    """The process of its engine: the last one that its log tells of."""
    return Process(int(re.findall(r"its engine is process (\d+)", server.log)[-1]))


def ask(server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    """One request on a connection of its own, which any worker may accept."""
    with server.connect() as connection:
        return connection.ask(method, path, body, headers or {})


def test_all_workers_have_one_engine_which_ends_with_them(own: Server) -> None:
    engine = engine_of(own)
    assert len(re.findall(r"its engine is process", own.log)) == 1
    assert len(own.workers()) == 3
    texts = set()
    for _ in range(12):
        with own.connect() as connection:
            texts.add(connection.post(chat(max_tokens=5)).json["choices"][0]["message"]["content"])
    assert len(texts) == 1

    own.stop()

    eventually(lambda: not engine.is_alive, what="the end of the engine")


def test_stored_responses_are_found_and_continued_at_any_worker(shared: Server) -> None:
    ids = []
    for _ in range(8):
        answer = ask(shared, "POST", "/v1/responses", {"input": "hi", "max_output_tokens": 3})
        assert answer.status == 200
        ids.append(answer.json["id"])

    assert [ask(shared, "GET", f"/v1/responses/{id}").status for id in ids] == [200] * 8
    body = {"input": "go on", "max_output_tokens": 3, "previous_response_id": ids[0]}
    assert [ask(shared, "POST", "/v1/responses", body).status for _ in range(6)] == [200] * 6


def test_a_key_has_one_answer(shared: Server) -> None:
    answers = [ask(shared, "POST", "/v1/chat/completions", chat_body(), {"Idempotency-Key": "one"}) for _ in range(8)]

    assert len({answer.json["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 7


def chat_body(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **more}


def test_an_abort_ends_a_group_wherever_its_requests_came(shared: Server) -> None:
    with ThreadPoolExecutor(6) as threads:
        asked = [
            threads.submit(ask, shared, "POST", "/v1/chat/completions", chat_body(max_tokens=2000), {"X-Group-Id": "g"})
            for _ in range(6)
        ]
        shared.wait_metric("running", 6)

        aborted = ask(shared, "DELETE", "/v1/groups/g")

        assert aborted.json["n_requests"] == 6
        assert {one.result().error["code"] for one in asked} == {"group_aborted"}


def test_a_stream_is_resumed_at_any_worker(shared: Server) -> None:
    headers = {"X-Conversation-Id": "talk"}
    body = chat_body(stream=True, max_tokens=40)
    with shared.connect() as connection:
        connection.send(request("POST", "/v1/chat/completions", body, headers))
        assert connection.head().status == 200
        next(connection.pieces())

    whole = [ask(shared, "GET", "/v1/stream?conv_id=talk&from=0").body for _ in range(6)]

    assert len(set(whole)) == 1
    assert whole[0].count(b"data: ") > 20
    assert whole[0].rstrip().endswith(b"data: [DONE]")


def test_a_large_body_and_requests_one_after_the_other_go_through(shared: Server) -> None:
    with shared.connect() as connection:
        for _ in range(6):
            large = connection.ask("POST", "/v1/responses", {"input": "x " * 200_000, "max_output_tokens": 3}, {})
            assert (large.status, large.error["code"]) == (400, "context_length_exceeded")
            assert connection.post(chat(max_tokens=2)).status == 200
            assert connection.ask("GET", "/health").status == 200


def test_an_engine_that_is_killed_is_followed_by_another(own: Server) -> None:
    first = engine_of(own)
    with own.connect() as connection:
        connection.send(request("POST", "/v1/chat/completions", chat_body(stream=True, max_tokens=150, temperature=0)))
        assert connection.head().status == 200
        pieces = connection.pieces()
        next(pieces)
        first.kill()
        rest = b"".join(pieces)

    assert rest.rstrip().endswith(b"data: [DONE]")
    assert b'"finish_reason":"length"' in rest
    assert engine_of(own).pid != first.pid
    assert ask(own, "POST", "/v1/chat/completions", chat_body()).status == 200
    assert len(own.workers()) == 3


def test_a_worker_that_is_killed_takes_nothing_of_the_others(own: Server) -> None:
    engine = engine_of(own)
    os.kill(own.workers()[0], signal.SIGKILL)

    eventually(lambda: own.log.count("model synthetic: loaded") == 4, what="another worker")
    assert engine.is_alive
    ids = [ask(own, "POST", "/v1/responses", {"input": "hi", "max_output_tokens": 3}).json["id"] for _ in range(6)]
    assert [ask(own, "GET", f"/v1/responses/{id}").status for id in ids] == [200] * 6


def test_counters_are_those_of_the_engine_at_every_worker(own: Server) -> None:
    for _ in range(6):
        assert ask(own, "POST", "/v1/chat/completions", chat_body()).status == 200

    eventually(lambda: [own.metric("generated_tokens_total") for _ in range(8)] == [18] * 8, what="18 tokens")


def test_every_worker_shows_the_requests_of_all(own: Server) -> None:
    for _ in range(9):
        assert ask(own, "GET", "/v1/models").status == 200

    shown = [ask(own, "GET", "/metrics").body.decode() for _ in range(4)]

    for text in shown:
        fronts = dict(re.findall(r'corosrv_open_streams\{front="(\d+)"\} (\S+)', text))
        assert len(fronts) == 3
        counts = re.findall(r'corosrv_http_requests_total\{front="\d+",route="/v1/models",status="200"\} (\S+)', text)
        assert sum(map(float, counts)) == 9
        assert text.count("# TYPE corosrv_steps_total ") == 1


def test_a_model_is_unloaded_and_loaded_in_all_workers(own: Server) -> None:
    def states() -> set[str]:
        return {ask(own, "GET", "/models").json["data"][0]["status"]["value"] for _ in range(9)}

    assert states() == {"loaded"}

    assert ask(own, "POST", "/models/unload", {"model": "synthetic"}).status == 200
    eventually(lambda: states() == {"unloaded"}, what="no worker has the model")
    assert ask(own, "POST", "/models/unload", {"model": "synthetic"}).error["code"] == "model_not_loaded"
    assert ask(own, "POST", "/models/load", {"model": "synthetic"}).status == 200
    eventually(lambda: states() == {"loaded"}, what="all workers have the model")


def test_a_model_that_another_worker_uses_is_not_unloaded(own: Server) -> None:
    with own.connect() as connection:
        connection.send(request("POST", "/v1/chat/completions", chat_body(stream=True, max_tokens=2000)))
        assert connection.head().status == 200

        refused = [ask(own, "POST", "/models/unload", {"model": "synthetic"}) for _ in range(4)]

    assert {answer.error["code"] for answer in refused} == {"model_in_use"}


def test_one_worker_may_have_its_engine_in_a_process_too(start: Servers, run_dir: str) -> None:
    server = start.start(*SERVE, "--engine", "process", run_dir=run_dir)

    assert ask(server, "POST", "/v1/chat/completions", chat_body()).status == 200
    assert engine_of(server).is_alive
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_group_finds_the_answers_that_it_forks_whichever_process_is_asked(shared: Server) -> None:
    headers = {"X-Group-Id": "tree"}
    body = chat(max_tokens=4, forkable=True)
    ids = [ask(shared, "POST", "/v1/chat/completions", body, headers).json["id"] for _ in range(6)]

    forks = [ask(shared, "POST", "/v1/chat/completions", {"fork": {"of": id}, "max_tokens": 2}, headers) for id in ids]

    assert [fork.status for fork in forks] == [200] * 6


def test_worker_processes_end_without_a_trace(start: Servers, run_dir: str) -> None:
    server = start.start(*SERVE, "-w", "2", run_dir=run_dir, model="synthetic:")
    eventually(lambda: server.log.count("model synthetic: loaded") == 2, what="two workers")
    server.signal(signal.SIGTERM)

    assert server.wait() == 0
    assert "Traceback" not in server.log
