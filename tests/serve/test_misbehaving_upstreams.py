"""A front whose upstreams misbehave: each gets its client a clear answer, and none takes the front down."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from corosrv.base.errors import ManagementError
from tests.serve.fronts import ServerFront, front
from tests.serve.server import Servers
from tests.serve.wire import CHAT, Answer, chat, events, request
from tests.support.scripted_upstream import Behaviour, Handler, ScriptedUpstream, fails_with, scripted
from tests.support.waiting import eventually

KEY = "the-key-of-the-front"
EVENT = b'data: {"choices":[]}\n\n'
_numbers = itertools.count()


@pytest.fixture(scope="module")
def forwarding(request: pytest.FixtureRequest) -> Iterator[ServerFront]:
    """One front for all tests, each of which brings an upstream with a model of its own."""
    kept: Servers = request.getfixturevalue("_kept")
    with front(kept, elastic=1, strict_model=1, api_keys=KEY, COROSRV_UPSTREAM_KEY_OWN="its-own") as started:
        yield started


@pytest.fixture(scope="module")
def impatient(request: pytest.FixtureRequest) -> Iterator[ServerFront]:
    """Another one, which waits for a second only; tests of other things would meet that on a busy machine."""
    kept: Servers = request.getfixturevalue("_kept")
    with front(kept, elastic=1, strict_model=1, api_keys=KEY, upstream_idle=1, upstream_first_byte=1) as started:
        yield started


class Case:
    """One upstream of the front, and calls to it."""

    def __init__(self, forwarding: ServerFront, upstream: ScriptedUpstream, model: str) -> None:
        self.forwarding = forwarding
        self.upstream = upstream
        self.model = model

    def ask(self, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        with self.forwarding.server.connect() as connection:
            fields.setdefault("model", self.model)
            return connection.post(chat(**fields), path, {"Authorization": f"Bearer {KEY}"} | (headers or {}))


@contextmanager
def serving(forwarding: ServerFront, behaviour: Behaviour | None = None, **options: Any) -> Iterator[Case]:
    """Adds an upstream to a front, and removes it in the end."""
    model = f"model-{next(_numbers)}"
    with scripted(behaviour, (model,)) as upstream:
        added = forwarding.add(upstream.url, model=model, **options)
        eventually(lambda: forwarding.manage("GET", f"/workers/{added}")["state"] == "ready", what="ready")
        try:
            yield Case(forwarding, upstream, model)
        finally:
            with suppress(ManagementError):  # a test may have removed it
                forwarding.manage("DELETE", f"/workers/{added}?mode=abort")


@pytest.fixture
def serve(forwarding: ServerFront) -> Any:
    return partial(serving, forwarding)


# What goes on, and what comes back.


def test_a_request_goes_on_as_it_was_sent(serve: Any):
    with serve() as case:
        answer = case.ask(f"{CHAT}?a=1&b=%20", {"X-Session-Id": "s", "Cookie": "c=1", "traceparent": "00-1-2-01"})
        path, headers, body = case.upstream.requests[0]

    assert answer.status == 200
    assert path == f"{CHAT}?a=1&b=%20"
    assert json.loads(body) == chat(model=case.model)
    assert (headers["X-Session-Id"], headers["Traceparent"]) == ("s", "00-1-2-01")
    assert headers["X-Request-Id"] == answer.headers["x-request-id"]
    assert "Cookie" not in headers
    assert KEY not in str(headers)


def test_an_upstream_gets_the_key_that_is_its_own(serve: Any):
    with serve(api_key_env="COROSRV_UPSTREAM_KEY_OWN") as case:
        case.ask()
        headers = case.upstream.requests[0][1]

    assert headers["Authorization"] == "Bearer its-own"


@pytest.mark.parametrize("name", ["COROSRV_API_KEYS", "HOME"])
def test_a_variable_of_the_front_that_is_no_upstreams_key_goes_nowhere(forwarding: ServerFront, name: str):
    before = forwarding.manage("GET", "/list_workers")["urls"]
    with scripted() as upstream:
        with pytest.raises(ManagementError, match="api_key_env must name"):
            forwarding.add(upstream.url, api_key_env=name)
        answer = forwarding.manage_text("POST", f"/add_worker?url={upstream.url}%3Fapi_key_env={name}")

    assert "api_key_env must name" in answer
    assert forwarding.manage("GET", "/list_workers")["urls"] == before


def test_an_answer_comes_back_as_it_was_given(serve: Any):
    def answer_it(handler: Handler) -> None:
        handler.answer(418, {"error": "tea"}, Set_Cookie="a=b", X_Own="1", Access_Control_Allow_Origin="*")

    with serve(answer_it) as case:
        answer = case.ask()

    assert (answer.status, answer.json, answer.headers["x-own"]) == (418, {"error": "tea"}, "1")
    assert not {"set-cookie", "access-control-allow-origin"} & answer.headers.keys()


def test_an_unknown_model_is_not_found_in_the_dialects_form(serve: Any):
    with serve() as case:
        ours, theirs = case.ask(model="nobody's"), case.ask("/v1/messages", model="nobody's")

        assert (ours.status, ours.error["code"]) == (404, "model_not_found")
        assert (theirs.status, theirs.error["type"]) == (404, "not_found_error")
        assert case.upstream.requests == []


# Upstreams that fail.


def test_an_upstream_that_asks_for_a_pause_gets_the_call_after_it(serve: Any):
    def busy_once(handler: Handler) -> None:
        if len(handler.server.upstream.requests) == 1:
            handler.answer(429, {}, Retry_After="1")
        else:
            handler.answer(200, {"ok": True})

    with serve(busy_once) as case:
        answer = case.ask()

        assert (answer.status, answer.json) == (200, {"ok": True})
        assert len(case.upstream.requests) == 2


def test_answers_that_are_kept_for_their_clients_count_with_bodies(start: Servers):
    begun, rest = threading.Event(), threading.Event()

    def large(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", "60000")
        handler.end_headers()
        handler.wfile.write(b"x" * 59_999)
        begun.set()
        assert rest.wait(20)
        handler.wfile.write(b"x")

    with (
        scripted(large) as upstream,
        front(start, upstream.url, max_body_bytes=65_536, bodies_bytes=65_536) as served,
        served.server.connect() as first,
    ):
        first.send(request("POST", CHAT, chat()))
        assert begun.wait(15)

        eventually(lambda: post_blanks(served, 20_000).status == 503, 10, "the first answer is counted")
        rest.set()
        assert len(first.answer().body) == 60_000
        eventually(lambda: post_blanks(served, 60_000).status == 400, 10, "what it held is free again")


def post_blanks(served: ServerFront, n_bytes: int) -> Answer:
    """Sends a body which is wrong, once there is room for it."""
    with served.server.connect() as connection:
        return connection.post(b"[" + b" " * n_bytes + b"]")


def test_an_answer_that_is_shorter_than_it_says_is_a_bad_gateway(serve: Any):
    def cut(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"a":')
        handler.close_connection = True

    with serve(cut) as case:
        answer = case.ask()

    assert (answer.status, answer.error["type"]) == (502, "server_error")


@pytest.mark.parametrize("end", [b"", b'data: {"half', EVENT[:-1]])
def test_a_stream_that_breaks_off_ends_in_an_error_event_between_two_events(serve: Any, end: bytes):
    def cut(handler: Handler) -> None:
        handler.begin_stream()
        handler.chunk(EVENT + end)
        handler.close_connection = True

    with serve(cut) as case:
        answer = case.ask(stream=True)

    first, last = events(answer.body)
    assert (answer.status, first) == (200, {"choices": []})
    assert last["error"]["type"] == "server_error"


def test_a_stream_that_stalls_ends_in_an_error_event(impatient: ServerFront):
    def stall(handler: Handler) -> None:
        handler.begin_stream()
        handler.chunk(EVENT)
        handler.rfile.read(1)  # until the front hangs up

    with serving(impatient, stall) as case:
        answer = case.ask(stream=True)

    assert "sent nothing for 1 s" in events(answer.body)[-1]["error"]["message"]


def test_an_upstream_that_never_answers_is_a_bad_gateway(impatient: ServerFront):
    with serving(impatient, lambda handler: handler.rfile.read(1)) as case:
        answer = case.ask()

    assert answer.status == 502
    assert "did not answer within 1 s" in answer.error["message"]


def test_a_compressed_answer_is_a_bad_gateway(serve: Any):
    def compress(handler: Handler) -> None:
        body = gzip.compress(b"{}")
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with serve(compress) as case:
        assert case.ask().status == 502


def test_a_redirect_is_a_bad_gateway_and_not_followed(serve: Any):
    with scripted() as target, serve(fails_with(307, Location=f"{target.url}{CHAT}")) as case:
        answer = case.ask()

        assert (answer.status, target.requests) == (502, [])
        assert "a redirect" in answer.error["message"]


def test_an_upstream_sends_no_more_than_its_client_takes(serve: Any):
    n_sent = [0]
    is_held_back = threading.Event()

    def flood(handler: Handler) -> None:
        handler.connection.settimeout(0.5)
        handler.begin_stream()
        try:
            for _ in range(4000):
                handler.chunk(b"data: " + b"a" * 65_536 + b"\n\n")
                n_sent[0] += 65_536
        except TimeoutError:
            is_held_back.set()
            raise

    with serve(flood) as case, case.forwarding.server.connect(receive_buffer=4096) as connection:
        fields = {"Authorization": f"Bearer {KEY}"}
        connection.send(request("POST", CHAT, chat(model=case.model, stream=True), fields))
        connection.head()
        assert is_held_back.wait(30)
        memory = case.forwarding.server.worker.peak_bytes()

    assert n_sent[0] < 32 << 20
    assert memory < 400 << 20


# Operators.


def test_the_same_url_is_the_same_upstream(forwarding: ServerFront):
    with scripted() as upstream:
        first = forwarding.manage("POST", "/workers", {"url": upstream.url + "/", "model": "twice"})
        second = forwarding.manage("POST", "/workers", {"url": upstream.url, "concurrency": 99})
        shown = forwarding.manage("GET", f"/workers/{first['id']}")
        forwarding.manage("DELETE", f"/workers/{first['id']}?mode=abort")

    assert first["id"] == second["id"]
    assert (shown["concurrency"], shown["models"]) == (32, ["twice"])


def test_an_upstream_drains_and_is_gone(serve: Any, forwarding: ServerFront):
    with scripted() as upstream:
        added = forwarding.add(upstream.url)

        assert forwarding.manage("DELETE", f"/workers/{added}?mode=drain&timeout=5")["state"] in ("draining", "gone")

        eventually(lambda: added not in str(forwarding.manage("GET", "/workers")), what="gone")
        with pytest.raises(ManagementError, match="there is no upstream"):
            forwarding.manage("GET", f"/workers/{added}")


def test_an_abort_ends_running_calls_at_once(serve: Any, forwarding: ServerFront):
    def forever(handler: Handler) -> None:
        handler.begin_stream()
        handler.chunk(EVENT)
        handler.rfile.read(1)

    with serve(forever) as case, forwarding.server.connect() as connection:
        fields = {"Authorization": f"Bearer {KEY}"}
        connection.send(request("POST", CHAT, chat(model=case.model, stream=True), fields))
        connection.head()

        forwarding.manage("DELETE", f"/workers/{case.upstream.url}?mode=abort")

        assert "removed" in events(b"".join(connection.pieces()))[-1]["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"url": "ftp://a"}, "no http or https URL"),
        ({"url": "http://a", "concurrency": 0}, "concurrency must be"),
        ({"url": "http://a", "speed": 1}, "speed"),
        ({}, "url"),
        ({"url": "http://a", "api_key_env": "a b"}, "api_key_env"),
    ],
)
def test_a_wrong_upstream_is_refused_by_field(forwarding: ServerFront, body: dict[str, Any], words: str):
    with pytest.raises(ManagementError, match=words):
        forwarding.manage("POST", "/workers", body)


@pytest.mark.parametrize("query", ["mode=kill", "timeout=-1", "timeout=nan", "timeout=soon"])
def test_a_wrong_removal_removes_nothing(serve: Any, forwarding: ServerFront, query: str):
    with serve() as case:
        with pytest.raises(ManagementError, match="must be"):
            forwarding.manage("DELETE", f"/workers/{case.upstream.url}?{query}")

        assert case.ask().status == 200


def test_workers_come_and_go_by_the_paths_of_sglangs_router(forwarding: ServerFront):
    with scripted(models=("sgl",)) as upstream:
        assert forwarding.manage_text("POST", f"/add_worker?url={upstream.url}").startswith("Successfully added")
        listed = forwarding.manage("GET", "/list_workers")["urls"]
        assert forwarding.manage_text("POST", f"/remove_worker?url={upstream.url}").startswith("Successfully removed")

    assert upstream.url in listed
    assert upstream.url not in forwarding.manage("GET", "/list_workers")["urls"]
