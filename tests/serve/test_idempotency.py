"""Requests that are repeated with their Idempotency-Key, in every dialect."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Answer, Connection, chat, request
from tests.support.waiting import eventually

SHORT = {"max_tokens": 3}
LONG = {"max_tokens": 5000}
BEGUN = {"X-Request-Timeout-Ms": "1000"}  # in which an answer has begun also where much else runs
DONE = 'jobs_total{outcome="length"}'

DIALECTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat(**SHORT)),
    ("/chat/completions", chat(**SHORT)),
    ("/v1/completions", {"prompt": "hi", **SHORT}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 3}),
    ("/v1/messages", chat(**SHORT)),
    ("/completion", {"prompt": "hi", "n_predict": 3}),
]

_numbers = itertools.count()


def new_key() -> dict[str, str]:
    return {"Idempotency-Key": f"key-{next(_numbers)}"}


def is_replayed(answer: Answer) -> bool:
    return answer.headers.get("idempotency-replayed") == "true"


def tokens(server: Server) -> float:
    server.wait_idle()
    return server.metric("generated_tokens_total")


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect() as connection:
        yield connection


@pytest.mark.parametrize(("path", "body"), DIALECTS, ids=[path for path, _ in DIALECTS])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_repeated_request_gets_the_same_bytes_and_computes_nothing(
    server: Server, connection: Connection, path: str, body: dict[str, Any], stream: bool
) -> None:
    body, key = {**body, "stream": stream}, new_key()
    first = connection.post(body, path, key)
    computed = tokens(server)

    second = connection.post(body, path, key)

    assert first.status == second.status == 200
    assert first.body
    assert second.body == first.body
    assert second.headers["content-type"] == first.headers["content-type"]
    assert second.headers.get("cache-control") == first.headers.get("cache-control")
    assert (is_replayed(first), is_replayed(second)) == (False, True)
    assert second.headers["x-request-id"] != first.headers["x-request-id"]
    assert tokens(server) == computed


def test_without_a_key_each_request_is_computed(server: Server, connection: Connection) -> None:
    first, second = (connection.post(chat(**SHORT)) for _ in range(2))

    assert first.json["id"] != second.json["id"]


@pytest.mark.model
@pytest.mark.parametrize(("path", "field"), [("/v1/embeddings", "input"), ("/embedding", "content")])
def test_embeddings_are_kept_as_well(real: Server, path: str, field: str) -> None:
    key = new_key()
    with real.connect() as connection:
        first, second = (connection.post({field: "hi"}, path, key) for _ in range(2))

    assert first.status == 200
    assert second.body == first.body
    assert is_replayed(second)


def test_every_operation_that_may_wait_in_the_queue_takes_a_key(server: Server) -> None:
    document = server.get("/openapi.json")[1]
    operations = {
        path: (
            {parameter["name"] for parameter in verbs["post"].get("parameters", ())},
            set(verbs["post"]["responses"]),
        )
        for path, verbs in document["paths"].items()
        if "post" in verbs
    }

    queued = {path for path, (names, _) in operations.items() if "X-Priority" in names}
    keyed = {path for path, (names, _) in operations.items() if "Idempotency-Key" in names}

    assert {CHAT, "/infill", "/v1/rerank", "/v1/messages", "/v1/embeddings", "/embedding"} <= queued
    assert keyed - queued == {"/v1/conversations", "/v1/conversations/{id}/items"}  # which add, without a model
    assert keyed >= queued
    assert all({"400", "409", "422"} <= operations[path][1] for path in keyed if not path.startswith("/v2/"))


def test_quotation_marks_are_no_part_of_a_key(connection: Connection) -> None:
    first = connection.post(chat(**SHORT), headers={"Idempotency-Key": '"quoted"'})

    second = connection.post(chat(**SHORT), headers={"Idempotency-Key": "quoted"})

    assert second.body == first.body


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat("other", **SHORT)), (CHAT, {**chat(**SHORT), "stream": True}), *DIALECTS[1:5]]
)
def test_another_request_with_the_key_is_refused(connection: Connection, path: str, body: dict[str, Any]) -> None:
    key = new_key()
    connection.post(chat(**SHORT), headers=key)

    answer = connection.post(body, path, key)

    assert answer.status == 422
    assert "Idempotency-Key" in answer.error["message"]


@pytest.mark.parametrize("field", ["", '""', "k" * 256, '"open', "schl\xfcssel"])
def test_what_is_no_key_is_refused(connection: Connection, field: str) -> None:
    answer = connection.post(chat(**SHORT), headers={"Idempotency-Key": field})

    assert answer.status == 400
    assert answer.error["param"] == "Idempotency-Key"


def test_a_key_of_a_megabyte_ends_at_the_limit_of_headers(server: Server) -> None:
    with server.connect() as connection:
        connection.send(request("POST", CHAT, chat(**SHORT), {"Idempotency-Key": "k" * 1_000_000}))

        assert connection.answer().status in (400, 431)


def test_fifty_requests_at_once_compute_one_answer(server: Server) -> None:
    key, body = new_key(), chat(max_tokens=50)
    before = server.metric(DONE)

    def ask(_: int) -> Answer:
        with server.connect() as connection:
            return connection.post(body, headers=key)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(50)))

    (good,) = {answer.body for answer in answers if answer.status == 200}
    early = [answer for answer in answers if answer.status == 409]
    assert good
    assert early
    assert len(early) + sum(is_replayed(answer) for answer in answers) == 49
    assert all(answer.headers["retry-after"] == "1" for answer in early)
    assert early[0].error["code"] == "still_running"
    assert server.metric(DONE) == before + 1


def test_the_official_client_comes_back_for_the_answer_of_the_first(server: Server) -> None:
    key = new_key()
    before = server.metric(DONE)
    messages: Any = [{"role": "user", "content": "hi"}]

    def ask(_: int) -> str:
        with server.client(max_retries=5) as client:
            chats = client.chat.completions
            return chats.create(model="synthetic", messages=messages, max_tokens=25, extra_headers=key).id

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(ask, range(4)))

    assert len(ids) == 1
    assert server.metric(DONE) == before + 1


def test_the_official_client_reads_a_stream_twice(server: Server) -> None:
    key = new_key()
    messages: Any = [{"role": "user", "content": "hi"}]

    def ask() -> list[Any]:
        with server.client() as client:
            options: Any = {"model": "synthetic", "messages": messages, "max_tokens": 5, "extra_headers": key}
            with client.chat.completions.create(**options, stream=True) as stream:
                return [chunk.to_dict() for chunk in stream]

    first, second = ask(), ask()

    assert len(first) > 5
    assert second == first


def test_a_client_that_leaves_leaves_its_key_free(server: Server) -> None:
    key, body = new_key(), chat(**LONG)
    cancelled = server.cancelled()
    leaving = server.connect()
    leaving.send(request("POST", CHAT, body, key))
    eventually(lambda: server.metric("running") == 1, what="its job runs")

    leaving.leave()

    eventually(lambda: server.cancelled() == cancelled + 1, what="its job is cancelled")
    server.wait_idle()
    with server.connect() as connection:
        answer = connection.post(chat(**SHORT), headers=key)
    assert (answer.status, is_replayed(answer)) == (200, False)


@pytest.mark.parametrize(
    "body", [chat(max_tokens=-5), chat("x" * 100_000), b"{", chat(grammar="root ::= [", stream=True)], ids=range(4)
)
def test_a_request_that_is_refused_leaves_its_key_free(connection: Connection, body: Any) -> None:
    key = new_key()
    assert connection.post(body, headers=key).status == 400

    answer = connection.post(chat(**SHORT), headers=key)

    assert (answer.status, is_replayed(answer)) == (200, False)


def test_a_request_whose_time_is_over_is_computed_again(connection: Connection) -> None:
    key = new_key()
    late = connection.post(chat(**LONG), headers={**key, **BEGUN})
    broken = connection.post(chat(**LONG, stream=True), headers={**new_key(), **BEGUN})

    answer = connection.post(chat(**SHORT), headers=key)

    assert late.status in (503, 504)
    assert b"deadline_exceeded" in broken.body
    assert (answer.status, is_replayed(answer)) == (200, False)


def test_a_stream_that_ended_in_an_error_is_computed_again(connection: Connection) -> None:
    key = {**new_key(), **BEGUN}
    first = connection.post(chat(**LONG, stream=True), headers=key)

    second = connection.post(chat(**LONG, stream=True), headers=key)

    assert b"deadline_exceeded" in first.body
    assert not is_replayed(second)


def test_each_api_key_has_keys_of_its_own_and_equal_room(start: Servers) -> None:
    server = start.start(api_keys="mine,yours", idempotency_bytes=40_000)
    mine, yours = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer yours"}
    body, key = chat(**SHORT), {"Idempotency-Key": "k"}

    with server.connect() as connection:
        first = connection.post(body, headers={**mine, **key})
        theirs = connection.post(body, headers={**yours, **key})
        for number in range(100):
            connection.post(body, headers={**yours, "Idempotency-Key": f"flood-{number}"})
        large = connection.post(chat(max_tokens=400, stream=True), headers={**yours, "Idempotency-Key": "large"})
        again = connection.post(chat(max_tokens=400, stream=True), headers={**yours, "Idempotency-Key": "large"})
        second = connection.post(body, headers={**mine, **key})
        metrics = connection.ask("GET", "/metrics", headers=mine).body.decode()

    sizes = {name: float(value) for name, value in re.findall(r"\ncorosrv_idempotency_(\w+) ([0-9.e+]+)", metrics)}
    assert first.json["id"] != theirs.json["id"]
    assert second.body == first.body
    assert len(large.body) > 20_000
    assert not is_replayed(again)
    assert "too large to be kept under its Idempotency-Key" in server.log
    assert 0 < sizes["bytes"] <= 40_000
    assert 1 <= sizes["records"] < 40
    assert sizes["replays_total"] == 1


def test_an_answer_is_forgotten_when_its_time_is_over_and_switched_off_none_is_kept(start: Servers) -> None:
    soon, off = start.start(idempotency_s=1), start.start(idempotency_bytes=0)
    key = {"Idempotency-Key": "k"}

    with soon.connect() as connection:
        first = connection.post(chat(**SHORT), headers=key)
        eventually(lambda: connection.post(chat(**SHORT), headers=key).body != first.body, what="it is computed anew")
    with off.connect() as connection:
        bodies = {connection.post(chat(**SHORT), headers=key).body for _ in range(2)}

    assert len(bodies) == 2
