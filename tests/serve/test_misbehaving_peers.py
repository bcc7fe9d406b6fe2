"""A replica whose peers misbehave: each request gets a clear answer, and none takes the replica down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.serve.replicas import TOKEN, Replica, ports, replica
from tests.serve.server import Servers
from tests.serve.wire import CHAT, Answer, chat, events, request
from tests.support.scripted_peer import ScriptedPeer, scripted_peer
from tests.support.scripted_upstream import Behaviour, Handler, echo, fails_with
from tests.support.waiting import eventually

EVENT = b'data: {"choices":[]}\n\n'
MAX = 2  # requests that may be with peers at once


def babble(handler: Handler) -> None:
    handler.wfile.write(b"I am no HTTP server\r\n\r\n")
    handler.close_connection = True


def drone(handler: Handler) -> None:
    """Announces for ever."""
    handler.begin_stream()
    while True:
        handler.chunk(b" " * 65_536)


@dataclass
class Case:
    """A replica with its peers: two that a test scripts, and others that announce nothing of use."""

    here: Replica
    first: ScriptedPeer
    second: ScriptedPeer
    spare: ScriptedPeer
    others: dict[str, str]  # URLs by what is wrong

    def ask(self, model: str, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        with self.here.server.connect() as connection:
            return connection.post(chat(model=model, max_tokens=2, **fields), CHAT, headers)


@pytest.fixture(scope="module")
def _case(request: pytest.FixtureRequest) -> Iterator[Case]:
    kept: Servers = request.getfixturevalue("_kept")
    with ports(1) as (own,), ExitStack() as stack:
        start = stack.enter_context
        first = start(scripted_peer("first", "only-first", "both", "three-have-it", "third"))
        second = start(scripted_peer("second", "both", "three-have-it"))
        spare = start(scripted_peer("spare", "three-have-it"))
        wrong = {
            "babbles": start(scripted_peer("x", announcing=babble)),
            "lists": start(scripted_peer("x", announcing=lambda handler: handler.answer(200, ["both"]))),
            "drones": start(scripted_peer("x", announcing=drone)),
            "strange": start(scripted_peer("x", announcing=fails_with(401))),
            "old": start(scripted_peer("x", announcing=fails_with(404))),
        }
        others = {word: peer.url for word, peer in wrong.items()} | {"itself": own.url}
        # In a path of its own, so that the first one is not named twice.
        expected = f"{first.url}/elsewhere?id=somebody"
        here = start(
            replica(kept, "here", own, first.url, second.url, spare.url, *others.values(), expected,
                    model="third=synthetic:?tokens_per_s=50", slots=1, queue=0, delegate_max=MAX)
        )  # fmt: skip
        here.wait_peer(first.url, "ready")
        here.wait_peer(second.url, "ready")
        here.wait_peer(spare.url, "ready")
        yield Case(here, first, second, spare, others)


@pytest.fixture
def case(_case: Case) -> Iterator[Case]:
    _case.first.behaviour = _case.second.behaviour = _case.spare.behaviour = echo
    yield _case
    _case.here.server.wait_metric("delegated_in_flight", 0)


# What they announce.


@pytest.mark.parametrize(
    ("which", "state", "words"),
    [
        ("babbles", "asking", "broke off"),
        ("lists", "asking", "it did not answer as a replica does"),
        ("drones", "asking", "its announcement is longer than 4 MiB"),
        ("strange", "asking", "it answered 401: its COROSRV_PEER_TOKEN is another"),
        ("old", "asking", "it answered 404"),
        ("itself", "refused", "it is this server itself"),
    ],
)
def test_a_peer_that_announces_nothing_of_use_is_shown_with_the_reason(case: Case, which: str, state: str, words: str):
    def is_shown() -> bool:
        peer = case.here.peers()[case.others[which]]
        return peer["state"] == state and words in peer["last_answer"]

    eventually(is_shown, 30, f"{which}: {case.here.peers()[case.others[which]]}")
    assert case.here.peers()[case.others[which]]["models"] == []


def test_a_reason_is_logged_once(case: Case):
    line = f"peer {case.others['itself']} (of unknown id) is refused"
    eventually(lambda: line in case.here.server.log, 30, "the line")

    n_asked = len(case.first.requests)
    case.ask("only-first")
    assert len(case.first.requests) == n_asked + 1
    assert case.here.server.log.count(line) == 1


# What they answer.


def test_a_request_goes_on_as_it_was_sent(case: Case):
    body = b'{ "model":"only-first", "x": [1,  2], "messages": "only the first one reads this" }'
    with case.here.server.connect() as connection:
        answer = connection.post(
            body, f"{CHAT}?a=b%20c", {"X-Request-Id": "id-1", "X-Corosrv-Other": "1", "Cookie": "c"}
        )

    assert answer.json == {"path": f"{CHAT}?a=b%20c", "body": body.decode()}
    assert answer.headers["x-corosrv-served-by"] == "first"
    headers = case.first.headers()
    assert headers["X-Corosrv-Token"] == TOKEN
    assert (headers["X-Corosrv-Hops"], headers["X-Corosrv-Path"]) == ("1", "here")
    assert headers["X-Request-Id"] == "id-1"
    assert int(headers["X-Corosrv-Elapsed-Ms"]) >= 0
    assert {"Cookie", "X-Corosrv-Other"}.isdisjoint(headers)


def test_a_body_for_a_model_served_here_is_judged_here(case: Case):
    n_before = len(case.first.requests)
    with case.here.server.connect() as connection:
        answer = connection.post({"model": "third", "messages": "nobody reads this"})

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (400, "here")
    assert len(case.first.requests) == n_before


def test_a_client_s_own_headers_of_a_trip_do_not_go_on(case: Case):
    case.ask("only-first", {"X-Corosrv-Hops": "1", "X-Corosrv-Path": "second", "X-Corosrv-Caller": "ab"})

    headers = case.first.headers()
    assert (headers["X-Corosrv-Hops"], headers["X-Corosrv-Path"]) == ("1", "here")
    assert "X-Corosrv-Caller" not in headers


@pytest.mark.parametrize("status", [404, 429, 503])
def test_a_peer_that_cannot_serve_a_call_lets_one_other_be_asked(case: Case, status: int):
    case.first.behaviour = case.second.behaviour = fails_with(status)
    n_before = len(case.first.requests) + len(case.second.requests)
    refused = case.ask("both")
    paths = [peer.headers()["X-Corosrv-Path"] for peer in (case.first, case.second)]

    case.second.behaviour = echo
    answer = case.ask("both")

    assert refused.status == status
    assert len(case.first.requests) + len(case.second.requests) - n_before in (3, 4)
    assert sorted(paths, key=len) in (["here", "here,first"], ["here", "here,second"])
    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "second")


def test_no_third_peer_is_asked_for_one_request(case: Case):
    peers = (case.first, case.second, case.spare)
    for peer in peers:
        peer.behaviour = fails_with(503)
    n_before = sum(len(peer.requests) for peer in peers)

    answer = case.ask("three-have-it")

    assert answer.status == 503
    assert sum(len(peer.requests) for peer in peers) == n_before + 2


def test_a_busy_peer_s_answer_says_more_than_this_server_s(case: Case):
    case.first.behaviour = fails_with(429, Retry_After="7")

    answer = case.ask("only-first")

    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert answer.error["message"] == "as the test says"


def test_a_peer_that_lacks_what_it_announces_leaves_the_answer_to_this_server(case: Case):
    case.first.behaviour = fails_with(404)

    answer = case.ask("only-first")

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (404, "here")
    assert answer.error["code"] == "model_not_found"


@pytest.mark.parametrize("status", [400, 403, 409, 422, 500, 502, 504, 508])
def test_any_other_answer_is_passed_on_and_nobody_else_is_asked(case: Case, status: int):
    case.first.behaviour = case.second.behaviour = fails_with(status)
    n_before = len(case.first.requests) + len(case.second.requests)

    answer = case.ask("both")

    assert (answer.status, answer.error["message"]) == (status, "as the test says")
    assert len(case.first.requests) + len(case.second.requests) == n_before + 1


def test_a_peer_that_does_not_know_the_token_is_as_one_that_cannot_serve(case: Case):
    case.first.behaviour = fails_with(401)

    assert case.ask("only-first").status == 404


def stops(handler: Handler) -> None:
    handler.begin_stream()
    handler.chunk(EVENT)
    handler.close_connection = True


def shortens(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")
    handler.close_connection = True


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (babble, "the replica first broke off"),
        (shortens, "the replica first broke off in mid-answer: it is shorter than it said"),
        (lambda handler: handler.answer(302, {}, Location="http://127.0.0.1:1/"), "a redirect, which is not followed"),
        (lambda handler: handler.answer(200, {}, Content_Encoding="gzip"), "compressed"),
    ],
)
def test_an_answer_that_is_none_ends_in_502_and_nobody_else_is_asked(case: Case, behaviour: Behaviour, words: str):
    case.first.behaviour = behaviour
    n_second = len(case.second.requests)

    answer = case.ask("only-first")

    assert answer.status == 502
    assert words in answer.error["message"]
    assert len(case.second.requests) == n_second


def test_a_stream_that_breaks_off_ends_in_an_error_event(case: Case):
    case.first.behaviour = stops

    answer = case.ask("only-first", stream=True)

    first, last = events(answer.body)
    assert first == {"choices": []}
    assert "the replica first" in last["error"]["message"]


def test_a_peer_that_stalls_costs_no_more_than_the_request_s_time(case: Case):
    is_over = threading.Event()
    case.first.behaviour = lambda handler: is_over.wait(30) and None
    try:
        answer = case.ask("only-first", {"X-Request-Timeout-Ms": "200"})
    finally:
        is_over.set()

    assert answer.status == 504


def test_peers_that_hang_cannot_fill_this_server(case: Case):
    is_over = threading.Event()
    case.first.behaviour = lambda handler: is_over.wait(30) and None
    body = request("POST", CHAT, chat(model="only-first"))
    with ExitStack() as stack:
        stack.callback(is_over.set)
        for _ in range(MAX):
            stack.enter_context(case.here.server.connect()).send(body)
        case.here.server.wait_metric("delegated_in_flight", MAX)

        answer = case.ask("only-first")
        own_answer = case.ask("third")

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (404, "here")
    assert own_answer.status == 200
    assert case.here.delegated()["full"] >= 1


def test_a_full_queue_is_answered_here_unless_peers_are_to_help_out(case: Case):
    with case.here.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="third", max_tokens=3000, stream=True)))
        connection.head()

        answer = case.ask("third")

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (429, "here")
