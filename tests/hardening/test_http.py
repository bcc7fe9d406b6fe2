"""Rows 1 to 15: what comes in by the socket, before it is a request and while it becomes one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.hardening import attacks
from tests.hardening.attacks import CLOSED, GOOD, Attack, run
from tests.hardening.watch import HealthWatch
from tests.serve.server import APP, GUNICORN, Server, Servers
from tests.serve.wire import CHAT, Connection, chat, events, request
from tests.support.waiting import eventually

Bear = Callable[[Attack], None]


def each(table: list[Attack]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", table, ids=str)


@each(attacks.NOT_HTTP)
def test_h001_what_is_not_http_is_refused_or_cut(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.TOO_LARGE_HEADS)
def test_h002_a_head_that_is_too_large_is_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.BAD_FIELDS)
def test_h003_fields_that_may_be_read_in_two_ways_are_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.LENGTHS)
def test_h004_what_stands_behind_a_length_in_doubt_is_no_request(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.DECLARED)
def test_h005_a_body_that_says_it_is_too_large_is_refused_unread(bear: Bear, attack: Attack) -> None:
    bear(attack)


def test_h005_who_is_refused_unread_is_told_that_the_connection_ends(watched: Server) -> None:
    with watched.connect() as connection:
        connection.send(request("POST", CHAT, None, {"Content-Length": str(10**11)}))

        assert connection.answer().headers["connection"] == "close"


@pytest.mark.parametrize("fields", [{"Content-Length": str(10**9)}, {"Transfer-Encoding": "chunked"}])
def test_h006_the_answer_reaches_a_client_that_goes_on_sending(watched: Server, fields: dict[str, str]) -> None:
    piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    with watched.connect() as connection:
        connection.send(request("POST", CHAT, None, fields))
        while not connection.has_input(0):
            connection.send(piece)
        for _ in range(50):
            connection.send(piece)

        assert connection.answer().status == 413
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.socket.recv(1) == b""  # an end, and no reset that would have destroyed the answer


@each(attacks.CUT_SHORT)
def test_h007_a_body_that_ends_early_is_never_executed(bear: Bear, attacked: Server, attack: Attack) -> None:
    before = attacked.metric("prompt_tokens_total")

    bear(attack)

    attacked.wait_idle()
    assert attacked.metric("prompt_tokens_total") == before


@each(attacks.BAD_CHUNKS)
def test_h008_bad_chunks_are_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


def test_h008_very_many_chunks_take_linear_time(watched: Server) -> None:
    body = GOOD + b" " * 300_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with watched.connect() as connection:
        began = time.monotonic()
        connection.send(request("POST", CHAT, None, {"Transfer-Encoding": "chunked"}) + chunks)

        assert connection.answer().status == 200
    assert time.monotonic() - began < 25


@each(attacks.ENCODED)
def test_h009_a_compressed_body_is_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


def trickle(connection: Connection, data: bytes, seconds: float) -> None:
    """Sends a byte at a time, until all is sent or nobody listens any more."""
    deadline = time.monotonic() + seconds
    for byte in data:
        if time.monotonic() > deadline:
            return
        connection.send(bytes([byte]))
        if connection.has_input(0.1):
            return


@pytest.fixture(scope="module")
def impatient(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(head_timeout_s=2, body_timeout_s=3)


@pytest.mark.parametrize(
    "data",
    [
        request("GET", "/health", None, {"A": "x" * 200}),
        request("GET", "/" + "x" * 200),
        request("POST", CHAT, GOOD + b" " * 200)[: -len(GOOD)],
        request("POST", CHAT, None, {"Transfer-Encoding": "chunked"}) + b"5;" + b"x" * 200,
    ],
    ids=["head", "line", "body", "chunk size"],
)
@pytest.mark.parametrize("stalls", [False, True], ids=["slow", "stalled"])
def test_h010_who_sends_too_slowly_is_cut(impatient: Server, data: bytes, stalls: bool) -> None:
    n_at_once = 20 if b"\r\n\r\n" not in data[:-200] else data.index(b"\r\n\r\n") + 4
    with HealthWatch(impatient), impatient.connect() as connection:
        began = time.monotonic()
        connection.send(data[:n_at_once])
        if not stalls:
            trickle(connection, data[n_at_once:], 8)

        answer = connection.answer()

        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert 1 < time.monotonic() - began < 20
        assert connection.is_closed()
    impatient.wait_idle()


def test_h011_an_idle_connection_ends_and_one_that_asks_stays(attacked: Server) -> None:
    with attacked.connect() as idle, attacked.connect() as asking:
        began = time.monotonic()
        while not idle.has_input(0.2):
            assert asking.ask("GET", "/health").status == 200
            assert time.monotonic() - began < 30
        assert idle.is_closed()


def test_h011_a_full_server_says_so_and_still_tells_its_health(start: Servers) -> None:
    full = start.start(*APP, "--worker-connections", "4", "--keep-alive", "60")
    clients = [full.connect() for _ in range(4)]
    for client in clients:
        assert client.ask("GET", "/health").status == 200

    with full.connect() as late, full.connect() as probe:
        refused = late.post(chat(max_tokens=1))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.error["type"] == "unavailable_error"
        assert late.is_closed()
        assert probe.ask("GET", "/health").status == 200

    clients[0].leave()
    eventually(lambda: ask_once(full) == 200, what="a place is free again")
    for client in clients[1:]:
        client.leave()


def ask_once(server: Server) -> int:
    with server.connect() as connection:
        return connection.post(chat(max_tokens=1)).status


@each(attacks.EXPECTATIONS)
def test_h012_who_is_refused_is_not_told_to_continue(bear: Bear, attack: Attack) -> None:
    bear(attack)


def test_h012_who_is_told_to_continue_is_answered_and_may_go_on(watched: Server) -> None:
    with watched.connect() as connection:
        for _ in range(2):
            connection.send(request("POST", CHAT, None, {"Content-Length": str(len(GOOD)), "Expect": "100-continue"}))
            assert connection.head().status == 100
            connection.send(GOOD)
            assert connection.answer().status == 200


def test_h012_what_is_pipelined_behind_a_stream_is_answered_behind_it(watched: Server) -> None:
    with watched.connect() as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=5)) + request("GET", "/health"))

        assert events(connection.answer().body)[-1] == "[DONE]"
        assert connection.answer().json["status"] == "ok"


def test_h012_a_client_that_sends_thousands_ahead_is_one_among_others(attacked: Server) -> None:
    """Each of its requests is answered in order, and everybody else has a turn in between."""
    n = 5000
    with HealthWatch(attacked) as watch, attacked.connect() as greedy:
        sending = threading.Thread(target=greedy.send, args=(request("GET", "/health") * n,))
        sending.start()
        statuses = {greedy.answer().status for _ in range(n)}
        sending.join(10)

    assert statuses == {200}
    assert watch.n_answers > 3


def test_h012_garbage_behind_a_stream_does_not_touch_it(watched: Server) -> None:
    with watched.connect() as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=5)) + b"\x00garbage\r\n\r\n")

        assert events(connection.answer().body)[-1] == "[DONE]"
        assert connection.answer().status == 400
        assert connection.is_closed()


def test_h012_a_refused_body_is_skipped_and_the_connection_serves_on(watched: Server) -> None:
    with watched.connect() as connection:
        answer = connection.post(b"x" * 1000, "/nowhere")

        assert (answer.status, answer.headers["connection"]) == (404, "keep-alive")
        assert connection.ask("GET", "/health").status == 200


@pytest.mark.parametrize("value", ["TE, close", "close, x", "keep-alive , CLOSE"])
def test_h012_a_client_that_names_close_among_others_is_closed_on(watched: Server, value: str) -> None:
    with watched.connect() as connection:
        answer = connection.ask("GET", "/health", headers={"Connection": value})

        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert connection.is_closed()


def test_h009_an_encoding_that_is_none_is_none(watched: Server) -> None:
    with watched.connect() as connection:
        assert connection.post(GOOD, headers={"Content-Encoding": ""}).status == 200


@each(attacks.ODD)
def test_h013_odd_methods_and_paths_get_nothing(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.TYPES)
def test_h014_bodies_of_other_types_are_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


@pytest.mark.parametrize(
    "fields",
    [
        {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "X-Forwarded-For": "evil.example"},
        {"Forwarded": "host=evil.example;proto=https"},
        {"X-Original-URL": "/evil.example", "X-HTTP-Method-Override": "DELETE"},
    ],
)
def test_h015_forged_fields_mean_nothing(watched: Server, fields: dict[str, str]) -> None:
    with watched.connect() as connection:
        for path, status in (("/v1/models", 200), ("/nowhere", 404)):
            answer = connection.ask("GET", path, headers=fields)

            assert answer.status == status
            assert b"evil.example" not in answer.body + str(answer.headers).encode()


def test_h015_a_forged_host_is_refused(watched: Server) -> None:
    for path in ("/v1/models", "/nowhere"):
        with watched.connect() as connection:
            assert connection.ask("GET", path, headers={"Host": "evil.example"}).status == 403


def test_h001_a_refusal_has_the_shape_of_every_error(attacked: Server) -> None:
    outcome = run(Attack(1, "", (b"\x00\r\n\r\n",), frozenset({400, CLOSED}), closes=True), attacked.port)

    assert b"X-Request-Id: req_" in outcome.data
    assert outcome.data.endswith(b'"type":"invalid_request_error","param":null,"code":"invalid_http"}}')


def test_h010_the_plain_command_and_the_named_worker_are_the_same(start: Servers) -> None:
    named = start.start(
        *GUNICORN[:1], "-k", "corosrv.web.http.front.Front", "--no-control-socket", *APP[len(GUNICORN) :],
        head_timeout_s=1 )  # fmt: skip
    with named.connect() as connection:
        connection.send(b"GET /health HTTP/1.1\r\nHo")

        assert connection.answer().status == 408
