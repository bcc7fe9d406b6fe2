"""The endpoints over real HTTP: connections, streams, and clients that leave."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.bodies import binary_body
from tests.serve.server import GUNICORN, Server
from tests.serve.wire import Connection, request
from tests.support.waiting import eventually

COMMAND = (*GUNICORN, "-b", "127.0.0.1:0", "tests.dialects.kserve.served:application")
GENERATE = "/v2/models/words/generate_stream"
ECHO = "/v2/models/echo/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(COMMAND, {}, tmp_path_factory.mktemp("kserve") / "log")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with Connection(server.port) as connection:
        yield connection


def counts(server: Server) -> dict[str, int]:
    return server.get("/counts")[1]


def seconds(n: float) -> dict[str, Any]:
    return {"inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [n]}]}


def generate(pause: float, **parameters: Any) -> bytes:
    body = {"text_input": "a b c", "parameters": {"pause": pause, **parameters}}
    return request("POST", GENERATE, body)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v2/models/none/infer", {"inputs": []}, {}, 404),
        (ECHO, {}, {}, 400),
        (ECHO, b"{", {}, 400),
        (ECHO, b"junk", {"Content-Encoding": "gzip"}, 400),
        (ECHO, {"inputs": []}, {"Inference-Header-Content-Length": "-1"}, 400),
        ("/v2/nothing", {"inputs": []}, {}, 404),
        ("/v2/health/live", {"inputs": []}, {}, 405),
        ("/v2/models/loading/infer", {"inputs": []}, {}, 503),
        ("/v2/models/streams/infer", {"inputs": []}, {}, 400),
        (ECHO, gzip.compress(bytes(65 << 20)), {"Content-Encoding": "gzip"}, 413),
    ],
)
def test_an_error_keeps_the_connection(connection: Connection, path: str, body: Any, headers: dict, status: int):
    answer = connection.ask("POST", path, body, headers)

    assert (answer.status, list(answer.json)) == (status, ["error"])
    assert answer.headers["content-type"] == "application/json"
    assert connection.ask("GET", "/v2/health/live").json == {"live": True}


def test_a_body_that_is_said_to_be_too_large_is_refused_before_it_is_read(connection: Connection):
    connection.send(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (ECHO.encode(), (64 << 20) + 1))

    answer = connection.answer()

    assert (answer.status, list(answer.json)) == (413, ["error"])
    assert answer.headers["connection"] == "close"


def test_the_content_type_of_a_request_does_not_matter(connection: Connection):
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "nonsense"):
        answer = connection.ask("POST", ECHO, {"inputs": []}, {"Content-Type": content_type})
        assert answer.status == 200


def test_a_request_keeps_its_sane_id(connection: Connection):
    assert connection.ask("POST", ECHO, {"inputs": [], "id": "mine"}).json["id"] == "mine"


def test_megabytes_come_back_as_they_went_in(connection: Connection):
    tensor = Tensor("a", "UINT8", [5 << 20], raw=bytes(range(256)) * (5 << 12))
    body, headers = binary_body([tensor], parameters={"binary_data_output": True})

    answer = connection.ask("POST", ECHO, body, headers)

    length = int(answer.headers["inference-header-content-length"])
    assert answer.body[length:] == tensor.raw
    assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [5 << 20]


def test_a_chunked_body_is_taken(connection: Connection):
    body = b'{"inputs": []}'
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    connection.send(b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%b" % (ECHO.encode(), chunks))

    assert connection.answer().status == 200


def test_a_client_that_leaves_cancels_its_call(server: Server):
    before = counts(server)["cancelled"]
    connection = Connection(server.port)
    connection.send(request("POST", "/v2/models/sleep/infer", seconds(30)))
    eventually(lambda: counts(server)["running"] == 1)
    began = time.monotonic()

    connection.leave()

    eventually(lambda: counts(server)["cancelled"] == before + 1)
    assert time.monotonic() - began < 15  # of the thirty
    assert counts(server)["running"] == 0


def test_a_client_that_leaves_a_stream_cancels_its_call(server: Server):
    check_leaving(server, 0.1, has_begun=True)


def test_a_client_that_leaves_before_its_stream_begins_cancels_its_call(tmp_path: Path):
    patient = Server(COMMAND, {"PING_SECONDS": "60"}, tmp_path / "log")
    try:
        check_leaving(patient, 30, has_begun=False)
    finally:
        patient.stop()


def check_leaving(server: Server, pause: float, *, has_begun: bool) -> None:
    before = counts(server)["cancelled"]
    connection = Connection(server.port)
    connection.send(generate(pause))
    if has_begun:
        assert connection.head().status == 200
    eventually(lambda: counts(server)["running"] == 1)

    connection.leave()

    eventually(lambda: counts(server)["cancelled"] == before + 1)
    assert counts(server)["running"] == 0


def test_the_status_of_a_stream_waits_for_its_first_piece(connection: Connection):
    connection.send(generate(0.05, fail_after=0))

    answer = connection.answer()

    assert (answer.status, answer.json) == (500, {"error": "the handler failed"})


def test_a_silent_stream_says_that_there_will_be_more(connection: Connection):
    connection.send(generate(0.8))

    answer = connection.head()
    pieces = b"".join(connection.pieces())

    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert pieces.startswith(b": wait\n\n")
    assert pieces.count(b": wait\n\n") >= 3
    assert b'"text_output":"a "' in pieces
    assert pieces.endswith(b'"done":true}\n\n')


def test_a_failure_behind_a_comment_is_an_event(connection: Connection):
    connection.send(generate(0.5, fail_after=1))

    answer = connection.head()
    pieces = b"".join(connection.pieces())

    assert answer.status == 200
    assert pieces.endswith(b'data: {"error":"the handler failed"}\n\n')
    assert b'"done":true' not in pieces


def test_pieces_are_sent_as_they_come(connection: Connection):
    connection.send(generate(0.2))
    connection.head()
    pieces = connection.pieces()

    first = next(piece for piece in pieces if b"data" in piece)

    assert (b'"a "' in first, b'"b "' in first) == (True, False)
    assert sum(piece.count(b"data: ") for piece in pieces) == 3


def test_a_connection_can_be_used_on_after_a_stream(connection: Connection):
    connection.send(generate(0))
    connection.answer()

    assert connection.ask("GET", "/v2/health/live").status == 200
