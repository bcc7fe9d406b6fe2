"""Mounted into somebody's own Flask app with two lines: deploy/example_app.py."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from corosrv.contracts.settings import add_key
from tests.serve.server import GUNICORN, REPOSITORY, START_SECONDS, Server, Servers
from tests.serve.wire import chat, events, request, text_of
from tests.support.waiting import eventually

CHAT = "/llm/v1/chat/completions"
EXAMPLE = (*GUNICORN, "-b", "127.0.0.1:0", "--chdir", str(REPOSITORY / "deploy"), "example_app:app")
FLASK = ("flask", "--app", str(REPOSITORY / "deploy" / "example_app.py"), "run", "--port", "0")
ASK: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}


def open_engine(server: Server) -> Server:
    """The model is loaded with the first request that arrives."""
    server.wait_until("ok", prefix="/llm")
    return server


@pytest.fixture(scope="module")
def mounted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    files = tmp_path_factory.mktemp("files")
    return open_engine(kept.start(*EXAMPLE, slots=16, files_path=files, wait_for=None))


@pytest.fixture
def client(mounted: Server) -> Iterator[openai.OpenAI]:
    with mounted.client(prefix="/llm") as client:
        yield client


def test_two_lines_of_the_example_are_all_that_it_takes() -> None:
    source = (REPOSITORY / "deploy" / "example_app.py").read_text()

    lines = [line for line in source.splitlines() if "corosrv" in line and "k gevent" not in line and '"""' not in line]
    assert [line.rpartition("#")[2].strip() for line in lines] == ["the first line", "the second line"]


def test_the_official_client_works_below_a_prefix(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASK, max_tokens=5).choices[0].message.content
    with client.chat.completions.create(**ASK, max_tokens=5, stream=True) as stream:
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert whole == streamed
    assert client.models.list().data[0].id == "synthetic"
    assert client.completions.create(model="any", prompt="x", max_tokens=2).choices
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**ASK, temperature=-1)


def test_a_batch_runs_below_a_prefix(client: openai.OpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}
    file = client.files.create(file=("lines", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")

    eventually(lambda: client.batches.retrieve(batch.id).status == "completed", what="the batch's end")

    output = client.batches.retrieve(batch.id).output_file_id
    assert output is not None
    assert client.files.content(output).json()["response"]["status_code"] == 200


def test_the_apps_own_pages_stay_its_own(mounted: Server) -> None:
    with mounted.connect() as connection:
        page = connection.ask("GET", "/")
        ping = connection.ask("GET", "/ping", headers={"Origin": "https://page.example"})
        missing = connection.ask("GET", "/v1/models")

    assert b"An app of its own" in page.body
    assert ping.json == {"pong": True}
    for answer in (page, ping, missing):
        assert not [name for name in answer.headers if name.startswith(("x-request-id", "access-control"))]
    assert missing.status == 404
    assert missing.headers["content-type"].startswith("text/html")


def test_answers_of_the_mounted_part_have_what_they_always_have(mounted: Server) -> None:
    with mounted.connect() as connection:
        answer = connection.post(chat(max_tokens=1), CHAT, {"Origin": "https://page.example"})
        refused = connection.post({"messages": []}, CHAT)
        metrics = connection.ask("GET", "/llm/metrics")

    assert answer.headers["x-request-id"]
    assert refused.error["param"] == "messages"
    assert b'corosrv_http_requests_total{route="/llm/v1/chat/completions",status="200"}' in metrics.body


def test_which_pages_may_call_an_app_is_its_own_business(mounted: Server) -> None:
    with mounted.connect() as connection:
        answer = connection.post(chat(max_tokens=1), CHAT, {"Origin": "https://page.example"})

    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_an_app_that_names_origins_is_called_by_their_pages_alone(start: Servers) -> None:
    server = open_engine(start.start(*EXAMPLE, cors_origins="https://page.example", wait_for=None))
    with server.connect() as connection:
        allowed = connection.post(chat(max_tokens=1), CHAT, {"Origin": "https://page.example"})
        refused = connection.post(chat(max_tokens=1), CHAT, {"Origin": "https://evil.example"})

    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert (refused.status, refused.error["code"]) == (403, "origin_not_allowed")


def test_an_app_is_called_by_whatever_name_it_has(mounted: Server) -> None:
    own_page = {"Host": "shop.example", "Origin": "https://shop.example", "Sec-Fetch-Site": "same-origin"}
    with mounted.connect() as connection:
        answer = connection.post(chat(max_tokens=1), CHAT, own_page)

    assert answer.status == 200


def test_an_app_that_names_its_hosts_is_called_by_no_others(start: Servers) -> None:
    server = open_engine(start.start(*EXAMPLE, allowed_hosts="shop.example", wait_for=None))
    statuses = {}
    for host in ("shop.example", "evil.example"):
        with server.connect() as connection:
            statuses[host] = connection.post(chat(max_tokens=1), CHAT, {"Host": host}).status

    assert statuses == {"shop.example": 200, "evil.example": 403}


AT_ONCE = 0.05  # seconds


def least_ping(server: Server, n_streams: int) -> float:
    """The median of the seconds that the app's own view takes while so many streams run.

    The least of several, up to the first that is AT_ONCE: other programs on the same processors delay answers, too.
    """
    streams = [server.connect() for _ in range(n_streams)]
    for connection in streams:
        body = {"prompt": "Once upon a time", "stream": True, "ignore_eos": True}
        connection.send(request("POST", "/llm/v1/completions", body))
    for connection in streams:
        assert connection.head().status == 200
        pieces = connection.pieces()
        while b'"text":"' not in next(pieces):  # it is being decoded for
            pass
    medians = []
    with server.connect() as connection:
        for _ in range(10):
            times = []
            for _ in range(50):
                began = time.monotonic()
                assert connection.ask("GET", "/ping").json == {"pong": True}
                times.append(time.monotonic() - began)
            medians.append(statistics.median(times))
            if medians[-1] < AT_ONCE:
                break
    for connection in streams:
        connection.leave()
    return min(medians)


def test_its_own_views_answer_at_once_while_sixteen_streams_run(mounted: Server) -> None:
    assert least_ping(mounted, 16) < AT_ONCE


@pytest.mark.model
def test_its_own_views_answer_at_once_while_the_real_model_decodes(start: Servers) -> None:
    server = open_engine(start.start(*EXAMPLE, model="", ctx=512, slots=16, threads=1, wait_for=None))

    assert least_ping(server, 16) < AT_ONCE


def test_a_client_that_leaves_a_mounted_stream_is_noticed(mounted: Server) -> None:
    before = mounted.metrics("/llm")['corosrv_jobs_total{outcome="cancelled"}']
    connection = mounted.connect()
    connection.send(request("POST", CHAT, chat(stream=True)))
    connection.head()

    connection.leave()

    mounted.wait_idle(within=10, prefix="/llm")
    assert mounted.metrics("/llm")['corosrv_jobs_total{outcome="cancelled"}'] > before


def test_flasks_own_server_answers_too(start: Servers) -> None:
    """Threads instead of greenlets: for development, and for whoever has not got gevent's worker."""
    server = open_engine(start.start(*FLASK, wait_for=None))
    with server.connect() as connection:
        whole = connection.post(chat(max_tokens=20), CHAT)
    with server.connect() as connection:
        streamed = connection.post(chat(max_tokens=20, stream=True), CHAT)

    assert whole.status == streamed.status == 200
    assert text_of(events(streamed.body)) == whole.json["choices"][0]["message"]["content"]
    with server.connect() as connection:
        connection.send(request("POST", CHAT, chat(max_tokens=4000, stream=True)))
        connection.head()
        pieces = connection.pieces()
        assert text_of(events(b"".join(next(pieces) for _ in range(4))))
        assert server.metrics("/llm")["corosrv_running"] == 1  # not all at once at the end
    with server.connect() as connection:
        refused = connection.post(b"not JSON", CHAT)
    assert refused.error["code"] == "invalid_json"
    server.wait_idle(prefix="/llm")
    assert "Traceback" not in server.log


SEVERAL = ("gunicorn", "-w", "3", "--no-control-socket", *EXAMPLE[EXAMPLE.index("-b") :], "-k")
FRONT = "corosrv.web.http.front.Front"


def start_several(start: Servers, tmp_path: Path, worker_class: str, **settings: Any) -> Server:
    """Three worker processes of the example, all of which have loaded the model."""
    server = start.start(*SEVERAL, worker_class, run_dir=tmp_path, wait_for=None, **settings)

    def all_are_ready() -> bool:
        with ThreadPoolExecutor(12) as threads:
            return set(threads.map(lambda _: server.health("/llm"), range(24))) == {"ok"}

    eventually(all_are_ready, START_SECONDS, "three workers")
    return server


def engines(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("*.lock")]


def ask(server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    """One request on a connection of its own, which any worker may accept."""
    with server.connect() as connection:
        return connection.ask(method, path, body, headers or {})


def test_worker_processes_of_an_app_share_an_engine_and_the_state_of_callers(start: Servers, tmp_path: Path) -> None:
    server = start_several(start, tmp_path, FRONT)

    made = [ask(server, "POST", "/llm/v1/responses", {"input": "hi", "max_output_tokens": 1}).json for _ in range(6)]
    answers = [ask(server, "POST", CHAT, chat(max_tokens=1), {"Idempotency-Key": "one"}).json for _ in range(6)]
    whole = ask(server, "POST", CHAT, chat(max_tokens=4, forkable=True)).json
    forks = [ask(server, "POST", CHAT, {"fork": {"of": whole["id"]}, "max_tokens": 1}) for _ in range(6)]

    assert [ask(server, "GET", f"/llm/v1/responses/{one['id']}").status for one in made] == [200] * 6
    assert len({answer["id"] for answer in answers}) == 1
    assert [fork.status for fork in forks] == [200] * 6
    assert len(set(re.findall(rb'corosrv_open_streams{front="(\d+)"}', ask(server, "GET", "/llm/metrics").body))) == 3
    assert len(engines(tmp_path)) == 1
    assert {ask(server, "GET", "/ping").status for _ in range(6)} == {200}


def test_lines_of_batches_run_in_the_worker_process_that_has_the_state_of_their_key(
    start: Servers, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    keys = [f"key-{number}" for number in range(4)]  # of some of which another process than the batches' has the state
    server = start_several(start, tmp_path, FRONT, files_path=files, api_keys=",".join(keys))
    line = {"method": "POST", "url": "/v1/responses", "body": {"input": "hi", "max_output_tokens": 1}}
    text = json.dumps({"custom_id": "one", **line}).encode()

    for key in keys:
        with server.client(key, "/llm") as client:
            file = client.files.create(file=("lines.jsonl", text), purpose="batch")
            id = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h").id
            done = eventually(lambda id=id: _ended(client.batches.retrieve(id)), what="the batch's end")
            (result,) = map(json.loads, client.files.content(done.output_file_id).text.splitlines())
            response = result["response"]["body"]
            assert client.responses.retrieve(response["id"]).id == response["id"]


def _ended(batch: Any) -> Any:
    return batch if batch.status == "completed" else None


def test_worker_processes_that_share_no_state_say_so_and_share_an_engine(start: Servers, tmp_path: Path) -> None:
    server = start_several(start, tmp_path, "gevent")

    assert "each worker process has its own stored responses" in server.log
    assert len(engines(tmp_path)) == 1


def test_worker_processes_that_would_count_a_key_each_for_itself_are_refused(start: Servers, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    key = add_key(str(keys), "one", {"requests_per_minute": 3})
    refused = start.start(*SEVERAL, "gevent", api_keys_file=keys, wait_for=None)
    assert refused.wait(START_SECONDS) != 0
    assert "COROSRV_API_KEYS_FILE: several worker processes would each count for themselves" in refused.log

    server = start_several(start, tmp_path, FRONT, api_keys_file=keys)
    bearer = {"Authorization": f"Bearer {key}"}
    statuses = [ask(server, "POST", CHAT, chat(max_tokens=1), bearer).status for _ in range(6)]
    assert statuses == [200] * 3 + [429] * 3
