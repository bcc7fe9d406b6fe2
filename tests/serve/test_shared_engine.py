"""Several worker processes with one engine: a client cannot tell which of them has answered."""

from __future__ import annotations

import json
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from corosrv.contracts.settings import ModelSettings, add_key, remove_key
from corosrv.models.engine.process.connector import MODULE
from corosrv.models.fitting import gguf
from corosrv.models.plan import estimate
from tests.serve.server import APP, SERVE, START_SECONDS, Process, Server, Servers, servers
from tests.serve.wire import chat, request
from tests.support.engines import packaged_model
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


def start_three(servers: Servers, run_dir: str, model: str, **settings: Any) -> Server:
    """Three workers, all of which are there."""
    server = servers.start(*APP, "-w", "3", run_dir=run_dir, model=model, **settings)
    eventually(lambda: server.log.count("loaded\n") == 3, START_SECONDS, "three workers")
    return server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    """A server of all tests that do it no harm."""
    with short_folder() as run_dir, servers(tmp_path_factory.mktemp("shared"), cache) as started:
        yield start_three(started, run_dir, "synthetic:?tokens_per_s=100")


class KeyedServer:
    """Three workers with a file of keys, a folder of batches, and two models of which the first is loaded."""

    def __init__(self, started: Servers, folder: Path, run_dir: str) -> None:
        self.path = str(folder / "keys.toml")
        self.admin = add_key(self.path, "admin", {"admin": True})
        models = "small=synthetic:?tokens_per_s=400,large=synthetic:?tokens_per_s=400"
        self.server = start_three(started, run_dir, models, api_keys_file=self.path, files_path=folder)

    def ask(self, key: str, method: str, path: str, body: Any = None) -> Any:
        return ask(self.server, method, path, body, {"Authorization": f"Bearer {key}"})

    def used(self, name: str) -> dict[str, Any]:
        shown = self.ask(self.admin, "GET", "/v1/usage").json["data"]
        total: dict[str, Any] = next(one["total"] for one in shown if one["key"] == name)
        return total


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[KeyedServer]:
    with short_folder() as run_dir, servers(tmp_path_factory.mktemp("log"), cache) as started:
        yield KeyedServer(started, tmp_path_factory.mktemp("keyed"), run_dir)


@pytest.fixture
def own(start: Servers, run_dir: str) -> Server:
    """A server of one test, with an engine of its own."""
    return start_three(start, run_dir, "synthetic:?tokens_per_s=100")


def ask(server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    """One request on a connection of its own, which any worker may accept."""
    with server.connect() as connection:
        return connection.ask(method, path, body, headers or {})


def test_all_workers_have_one_engine_which_ends_with_them(own: Server) -> None:
    engine = own.engine
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


def n_fronts(server: Server, headers: dict[str, str]) -> int:
    """Counts the workers that answer one of them."""
    shown = ask(server, "GET", "/metrics", None, headers).body.decode()
    return len(set(re.findall(r'corosrv_open_streams{front="(\d+)"}', shown)))


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
    first = own.engine
    with own.connect() as connection:
        connection.send(request("POST", "/v1/chat/completions", chat_body(stream=True, max_tokens=150, temperature=0)))
        assert connection.head().status == 200
        pieces = connection.pieces()
        next(pieces)
        first.kill()
        rest = b"".join(pieces)

    assert rest.rstrip().endswith(b"data: [DONE]")
    assert b'"finish_reason":"length"' in rest
    assert own.engine.pid != first.pid
    assert ask(own, "POST", "/v1/chat/completions", chat_body()).status == 200
    assert len(own.workers()) == 3


def test_what_is_stored_is_found_whatever_a_client_sends_as_its_key_where_none_is_asked_for(shared: Server) -> None:
    senders = [{}, *({"Authorization": f"Bearer {number}"} for number in range(6))]
    body = {"input": "hi", "max_output_tokens": 1}
    ids = [ask(shared, "POST", "/v1/responses", body, sender).json["id"] for sender in senders]

    assert {ask(shared, "GET", f"/v1/responses/{id}", None, who).status for id in ids for who in senders} == {200}


def test_a_worker_that_is_killed_takes_nothing_of_the_others(start: Servers, run_dir: str) -> None:
    own = start_three(start, run_dir, "synthetic:?tokens_per_s=100", api_keys=",".join(map(str, range(20))))
    engine = own.engine
    callers = [{"Authorization": f"Bearer {number}"} for number in range(20)]
    body = {"input": "hi", "max_output_tokens": 1}
    kept = [ask(own, "POST", "/v1/responses", body, caller).json["id"] for caller in callers]

    def found() -> list[int]:
        return [ask(own, "GET", f"/v1/responses/{id}", None, who).status for id, who in zip(kept, callers, strict=True)]

    victim = Process(own.workers()[0])
    victim.kill()
    # Not before all of its threads have ended, and with them its sockets, is it gone for its parent.
    eventually(lambda: victim.pid not in own.workers(), what="its end")

    found_then = found()
    statuses = []

    def has_four() -> bool:
        statuses.append(ask(own, "GET", "/health").status)
        statuses.append(ask(own, "POST", "/v1/chat/completions", chat_body(), callers[0]).status)
        return own.log.count("model synthetic: loaded") == 4

    eventually(has_four, START_SECONDS, "another worker")
    assert set(statuses) == {200}
    eventually(lambda: all(n_fronts(own, callers[0]) == 3 for _ in range(6)), what="three workers that know each other")
    assert found() == found_then
    assert set(found_then) == {200, 404}
    assert engine.is_alive
    ids = [ask(own, "POST", "/v1/responses", body, callers[0]).json["id"] for _ in range(6)]
    assert [ask(own, "GET", f"/v1/responses/{id}", None, callers[0]).status for id in ids] == [200] * 6


def test_counters_are_those_of_the_engine_at_every_worker(own: Server) -> None:
    for _ in range(6):
        assert ask(own, "POST", "/v1/chat/completions", chat_body()).status == 200

    eventually(lambda: [own.metric("generated_tokens_total") for _ in range(8)] == [18] * 8, what="18 tokens")


def test_every_worker_shows_the_requests_of_all(own: Server) -> None:
    eventually(lambda: all(n_fronts(own, {}) == 3 for _ in range(6)), what="three workers that know each other")
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
    assert server.engine.is_alive
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_worker_processes_end_without_a_trace(start: Servers, run_dir: str) -> None:
    server = start.start(*SERVE, "-w", "2", run_dir=run_dir, model="synthetic:")
    eventually(lambda: server.log.count("model synthetic: loaded") == 2, START_SECONDS, "two workers")
    server.signal(signal.SIGTERM)

    assert server.wait() == 0
    assert "Traceback" not in server.log


class EngineWatch:
    """Counts the engines' processes of a run directory again and again, in a thread."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir.encode()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = 0

    def count(self) -> int:
        n = 0
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdecimal() else []
                if MODULE.encode() in words and self._run_dir in words:
                    session = (process / "stat").read_text().rpartition(")")[2].split()[3]
                    n += session == process.name  # and no child of one, before it runs a program of its own
        return n

    def _look(self) -> None:
        while not self._is_over.wait(0.01):
            self.most = max(self.most, self.count())

    def __enter__(self) -> EngineWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.mark.model
@pytest.mark.parametrize("n", [1, 2])
def test_the_engines_of_all_workers_keep_one_limit_of_memory(start: Servers, run_dir: str, n: int) -> None:
    path = packaged_model()
    settings = ModelSettings(model=path, slots=2, ctx=512, kernels="ggml")  # whose weights no machine repacks
    limit = int(1.5 * estimate(settings, gguf.read(path)))
    models = f"a={path}?slots=2&ctx=512,b={path}?slots=1&ctx=512"
    options = {"model": models, "model_bytes": limit, "kernels": "ggml"}
    server = start.start(*SERVE, "-w", str(n), "--engine", "process", run_dir=run_dir, **options)

    def complete(number: int) -> int:
        body = {"model": "ab"[number % 2], "prompt": "hi", "max_tokens": 4}
        with server.connect(timeout=240) as connection:
            return connection.post(body, "/v1/completions").status

    with EngineWatch(run_dir) as watch:
        in_turns = [complete(number) for number in range(6)]
        with ThreadPoolExecutor(8) as clients:
            at_once = list(clients.map(complete, range(16)))

    assert {*in_turns, *at_once} == {200}
    assert watch.most == 1


TEXT = {"model": "small", "prompt": "hi", "max_tokens": 1}


@pytest.mark.parametrize("limits", [{}, {"requests_per_minute": 3}], ids=["free", "limited"])
def test_a_key_is_known_to_all_workers_once_it_was_added_and_to_none_once_it_was_removed(
    keyed: KeyedServer, limits: dict[str, int]
) -> None:
    for number in range(6):
        name = f"passing {number}{len(limits)}"
        key = add_key(keyed.path, name, limits)
        statuses = [keyed.ask(key, "POST", "/v1/completions", TEXT).status for _ in range(5)]
        assert statuses == ([200, 200, 200, 429, 429] if limits else [200] * 5)
        remove_key(keyed.path, name)

        assert [keyed.ask(key, "GET", "/v1/models").status for _ in range(6)] == [401] * 6


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_answer_is_forked_at_any_worker(keyed: KeyedServer, path: str) -> None:
    one, two = (add_key(keyed.path, f"forks {number} {path}", {}) for number in range(2))
    body = {"model": "small", "prompt": "hi", **chat_body()} | {"max_tokens": 4, "temperature": 0, "forkable": True}
    del body["prompt" if "chat" in path else "messages"]
    whole = keyed.ask(one, "POST", path, body).json
    fork = {"fork": {"of": whole["id"], "at": 2}, "max_tokens": 2, "temperature": 0}

    forks = [keyed.ask(one, "POST", path, fork) for _ in range(9)]
    others = [keyed.ask(two, "POST", path, fork) for _ in range(6)]

    assert [each.status for each in forks] == [200] * 9
    assert len({text_of(each.json) for each in forks}) == 1
    assert text_of(whole).endswith(text_of(forks[0].json))
    assert forks[0].json["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] + 2
    assert {each.error["code"] for each in others} == {"answer_not_found"}
    assert keyed.ask(one, "POST", f"/v1/forkable/{whole['id']}").status == 404


def text_of(answer: dict[str, Any]) -> str:
    (choice,) = answer["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def test_lines_of_batches_run_where_their_key_has_its_limits_and_its_responses(keyed: KeyedServer) -> None:
    keys = {name: add_key(keyed.path, name, {"tokens_per_day": 10_000}) for name in map("batch {}".format, range(4))}
    body = {"model": "small", "input": "hi", "max_output_tokens": 3}
    line = {"method": "POST", "url": "/v1/responses", "body": body}
    text = "\n".join(json.dumps({"custom_id": str(number), **line}) for number in range(3))
    for name, key in keys.items():
        with keyed.server.client(key) as client:
            file = client.files.create(file=("lines.jsonl", text.encode()), purpose="batch")
            id = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h").id
            eventually(lambda id=id: client.batches.retrieve(id).status == "completed", what="the batch's end")
            lines = client.files.content(client.batches.retrieve(id).output_file_id or "").text.splitlines()
        ids = [json.loads(line)["response"]["body"]["id"] for line in lines]

        assert [keyed.ask(key, "GET", f"/v1/responses/{id}").status for id in ids] == [200] * 3
        used = keyed.used(name)
        left = keyed.ask(key, "GET", "/v1/models").headers["x-ratelimit-remaining-tokens"]
        assert (used["requests"], used["generated_tokens"]) == (5, 9)  # the file and the batch among them
        assert int(left) == 10_000 - used["prompt_tokens"] - used["generated_tokens"]


def test_a_model_is_loaded_and_unloaded_for_all_workers_whichever_is_asked(keyed: KeyedServer) -> None:
    def states() -> set[str]:
        shown = [keyed.ask(keyed.admin, "GET", "/v1/models").json["data"][1] for _ in range(6)]
        shown += [keyed.ask(keyed.admin, "GET", "/v1/models/large").json for _ in range(6)]
        return {model["status"]["value"] for model in shown}

    def running() -> set[int]:
        return {len(keyed.ask(keyed.admin, "GET", "/api/ps").json["models"]) for _ in range(6)}

    def generate(**more: Any) -> Any:
        return keyed.ask(keyed.admin, "POST", "/api/generate", {"model": "large", "stream": False, **more})

    n_before = keyed.used("admin")["requests"]
    assert (states(), running()) == ({"unloaded"}, {1})

    for _ in range(6):  # so that several workers have it, each of which is told of every change
        assert generate(prompt="hi", options={"num_predict": 1}, keep_alive="1s").status == 200
    eventually(lambda: (states(), running()) == ({"unloaded"}, {1}), what="no worker has kept the model")
    for _ in range(6):
        assert generate(prompt="hi", options={"num_predict": 1}).status == 200
    assert (states(), running()) == ({"loaded"}, {2})
    assert generate(keep_alive=0).status == 200

    eventually(lambda: (states(), running()) == ({"unloaded"}, {1}), what="no worker has the model")
    assert keyed.used("admin")["requests"] - n_before == 13
