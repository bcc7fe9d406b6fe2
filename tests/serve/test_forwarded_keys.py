"""Requests that are repeated with their Idempotency-Key at a front of upstreams that know no such keys."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.serve.fronts import ServerFront, front
from tests.serve.server import Servers
from tests.serve.wire import CHAT, Answer, chat, request
from tests.support.scripted_upstream import Behaviour, Handler, ScriptedUpstream, scripted
from tests.support.waiting import eventually

WAIT = 30.0
FAR = "far"  # a model of the upstream alone
EVENT = b'data: {"choices":[]}\n\n'

_numbers = itertools.count()


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted(models=(FAR, "near")) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def forwarding(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[ServerFront]:
    """A front that has a model of its own, `near`, with the same name as one of the upstream."""
    kept: Servers = request.getfixturevalue("_kept")
    with front(kept, upstream.url, model="near=synthetic:", slots=1, ctx=4096) as started:
        eventually(lambda: len(started.server.get("/v1/models")[1]["data"]) == 2, what="both models")
        yield started


class Case:
    """Asks for one thing under one key, and counts what reaches the upstream of it."""

    def __init__(self, forwarding: ServerFront, upstream: ScriptedUpstream) -> None:
        self.forwarding = forwarding
        self.upstream = upstream
        self.key = f"key-{next(_numbers)}"
        self.n_before = len(upstream.requests)

    def ask(self, path: str = CHAT, **fields: Any) -> Answer:
        with self.forwarding.server.connect() as connection:
            return connection.post(chat(**{"model": FAR} | fields), path, {"Idempotency-Key": self.key})

    @property
    def n_asked(self) -> int:
        return len(self.upstream.requests) - self.n_before


@pytest.fixture
def case(forwarding: ServerFront, upstream: ScriptedUpstream) -> Iterator[Case]:
    before = upstream.behaviour
    yield Case(forwarding, upstream)
    upstream.behaviour = before


def streams(*events: bytes, is_cut: bool = False) -> Behaviour:
    def answer(handler: Handler) -> None:
        handler.begin_stream()
        for event in events:
            handler.chunk(event)
        if is_cut:
            handler.close_connection = True
        else:
            handler.end_stream()

    return answer


def is_replayed(answer: Answer) -> bool:
    return answer.headers.get("idempotency-replayed") == "true"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/completion", "/v1/embeddings", "/v1/rerank", "/v1/score"])
def test_a_repeated_request_is_answered_again_and_forwarded_once(case: Case, path: str):
    first, second = case.ask(path), case.ask(path)

    assert first.status == second.status == 200
    assert first.body == second.body
    assert (is_replayed(first), is_replayed(second), case.n_asked) == (False, True, 1)


def test_a_repeated_stream_is_sent_again_and_forwarded_once(case: Case):
    case.upstream.behaviour = streams(EVENT, EVENT, b"data: [DONE]\n\n")

    first, second = case.ask(stream=True), case.ask(stream=True)

    assert first.body == second.body == b"id: 1\n%bid: 2\n%bid: 3\ndata: [DONE]\n\n" % (EVENT, EVENT)
    assert (is_replayed(second), case.n_asked) == (True, 1)


def test_the_key_itself_stays_at_the_front(case: Case):
    case.ask()

    assert "Idempotency-Key" not in case.upstream.requests[-1][1]


def test_another_body_under_the_key_is_refused(case: Case):
    case.ask()

    assert case.ask(seed=7).status == 422
    assert case.n_asked == 1


def test_a_request_whose_first_is_still_running_is_told_to_come_back(case: Case):
    goes_on = threading.Event()

    def wait(handler: Handler) -> None:
        goes_on.wait(WAIT)
        handler.answer(200, {})

    case.upstream.behaviour = wait
    with case.forwarding.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model=FAR), {"Idempotency-Key": case.key}))
        eventually(lambda: case.n_asked == 1, what="the first one is there")
        refused = case.ask()
        goes_on.set()
        first = connection.answer()

    assert (refused.status, refused.error["code"], first.status) == (409, "still_running", 200)
    assert is_replayed(case.ask())


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda handler: handler.answer(418, {}),
        lambda handler: handler.answer(200, {"error": {"message": "no"}}),
        streams(EVENT, b'event: error\ndata: {"error": {"message": "no"}}\n\n'),
        streams(EVENT, is_cut=True),
    ],
    ids=["refusal", "error under 200", "error in a stream", "cut stream"],
)
def test_what_went_wrong_is_forwarded_again(case: Case, behaviour: Behaviour):
    case.upstream.behaviour = behaviour

    first, second = case.ask(), case.ask()

    assert first.body
    assert (is_replayed(second), case.n_asked) == (False, 2)


def test_an_answer_that_says_there_is_no_error_is_kept(case: Case):
    case.upstream.behaviour = lambda handler: handler.answer(200, {"id": "resp_1", "error": None})

    case.ask("/v1/responses")

    assert is_replayed(case.ask("/v1/responses"))


def test_a_key_of_an_answer_that_was_given_here_is_not_forwarded(case: Case):
    """A crowded model's requests go to the upstream: a repeated one does not."""
    first = case.ask(model="near", max_tokens=2)
    with ExitStack() as stack:
        for n_waiting in (0, 1, 2):
            connection = stack.enter_context(case.forwarding.server.connect())
            connection.send(request("POST", CHAT, chat(model="near", stream=True, max_tokens=3000)))
            case.forwarding.server.wait_metric("waiting", n_waiting)

        assert case.ask(model="near", max_tokens=2).body == first.body
    assert json.loads(first.body)["model"] == "near"
    assert case.n_asked == 0


def test_a_client_that_drops_its_socket_at_every_event_is_forwarded_once(case: Case):
    given = [b'id: 9\ndata: {"choices":[],"n":%d}\n\n' % number for number in range(4)]
    goes_on = [threading.Event() for _ in given]

    def answer(handler: Handler) -> None:
        handler.begin_stream()
        for event, gate in zip(given, goes_on, strict=True):
            handler.chunk(event)
            assert gate.wait(WAIT)
        handler.chunk(b"data: [DONE]\n\n")
        handler.end_stream()

    case.upstream.behaviour = answer
    got, number = b"", 0
    while not got.endswith(b"[DONE]\n\n"):
        headers = {"Idempotency-Key": case.key} | ({"Last-Event-ID": str(number)} if number else {})
        connection = case.forwarding.server.connect()
        connection.send(request("POST", CHAT, chat(model=FAR, stream=True), headers))
        got += next(piece for piece in connection.body(connection.head()) if piece)
        connection.leave()
        if number < len(goes_on):
            goes_on[number].set()
        number += 1

    expected = b"".join(b"id: %d\n%b" % (n, event[6:]) for n, event in enumerate(given, 1)) + b"id: 5\ndata: [DONE]\n\n"
    assert (got, case.n_asked) == (expected, 1)
