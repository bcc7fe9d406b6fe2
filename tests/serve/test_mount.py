"""Mounted into somebody's own Flask app with two lines: deploy/example_app.py."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serve.server import GUNICORN, REPOSITORY, Server, Servers
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


def least_ping(server: Server, n_streams: int) -> float:
    """The median of the seconds that the app's own view takes while so many streams run; the least of three."""
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
        for _ in range(3):
            times = []
            for _ in range(50):
                began = time.monotonic()
                assert connection.ask("GET", "/ping").json == {"pong": True}
                times.append(time.monotonic() - began)
            medians.append(statistics.median(times))
    for connection in streams:
        connection.leave()
    return min(medians)


def test_its_own_views_answer_at_once_while_sixteen_streams_run(mounted: Server) -> None:
    assert least_ping(mounted, 16) < 0.05


@pytest.mark.model
def test_its_own_views_answer_at_once_while_the_real_model_decodes(start: Servers) -> None:
    server = open_engine(start.start(*EXAMPLE, model="", ctx=512, slots=16, threads=1, wait_for=None))

    assert least_ping(server, 16) < 0.05


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
