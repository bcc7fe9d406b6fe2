"""Bodies that wait to be asked for, and connections that cannot go on."""

from __future__ import annotations

import io
import logging
import random

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import InvalidChunkSize
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader

from corosrv.web.http import message
from corosrv.web.http.message import MAX_FORGOTTEN, HttpResponse, LateErrors, PromptLengthReader, UnloggedResponse


class Sent:
    """The client's end of a connection."""

    def __init__(self) -> None:
        self.data = b""
        self.n_sends = 0

    def sendall(self, data: bytes) -> None:
        self.data += data
        self.n_sends += 1


def prepared(fields: str, body: bytes = b"") -> tuple[Request, Sent]:
    head = f"POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode()
    sent = Sent()
    request = Request(Config(), IterUnreader([head + body]), ("127.0.0.1", 1))
    message.prepare(request, sent)
    return request, sent


def parsed(kind: type[Request], data: bytes) -> tuple[object, ...]:
    """What a class of requests makes of bytes, or the error that it raises."""
    unreader = IterUnreader([data])
    try:
        made = kind(Config(), unreader, ("127.0.0.1", 1))
    except Exception as error:
        return (type(error),)
    what = made.method, made.uri, made.path, made.query, made.fragment, made.version, made.headers, made.scheme
    return *what, type(made.body.reader), made.should_close(), unreader.read()


LINES = (
    "POST / HTTP/1.1", "GET /v1/models HTTP/1.1", "POST /a//b/%2e?c=d#e HTTP/1.1", "POST //a HTTP/1.1",
    "POST /a HTTP/1.0", "PUT / HTTP/1.1", "POST http://a/b HTTP/1.1", "post / HTTP/1.1", "POST  / HTTP/1.1",
)  # fmt: skip
FIELDS = (
    "Host: a", "host:b", "Content-Length: 3", "Content-Length: 3", "Content-Length: x", "Content-Type: a/b;c=d",
    "Transfer-Encoding: chunked", "Expect: 100-continue", "Connection: close", "Connection: keep-alive", "X-A:",
    "X-A: \t b c \t ", "X_B: c", "X-Forwarded-Proto: https", "X-Forwarded-Proto: http", "X-A : b", " folded",
    "X-A: b\x00", "X-A: \xe4", "X-A: b\rc", "no field", ": nothing", "X-(: a",
)  # fmt: skip


def test_a_plain_head_is_read_as_gunicorn_reads_it_and_any_other_is_left_to_it(monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(1)
    n_plain = 0

    def count(request: message.ClientRequest, data: bytes) -> bytes | None:
        nonlocal n_plain
        rest = parse_plain(request, data)
        n_plain += rest is not None
        return rest

    parse_plain = message.ClientRequest._parse_plain
    monkeypatch.setattr(message.ClientRequest, "_parse_plain", count)
    for _ in range(2000):
        fields = chance.sample(FIELDS, chance.randrange(5))
        end = chance.choice(("\r\n", "\r\n", "\r\n", "\n"))
        head = end.join([chance.choice(LINES[:2] if chance.random() < 0.7 else LINES), *fields, "", ""])
        data = head.encode("latin-1") + b"abcGET / HTTP/1.1\r\n\r\n"

        assert parsed(message.ClientRequest, data) == parsed(Request, data), data

    assert n_plain > 100


@pytest.mark.parametrize(("fields", "body"), [
    ("Content-Length: 5\r\n", b"hello"), ("Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n")
])  # fmt: skip
def test_the_client_is_told_to_continue_when_its_body_is_read_and_once(fields, body):
    request, sent = prepared(fields + "Expect: 100-continue\r\n", body)
    assert sent.data == b""
    assert not request._expected_100_continue  # or gunicorn would tell the client itself
    assert not message.is_worth_reading_on(request)

    assert request.body.read(2) + request.body.read() == b"hello"
    assert sent.data == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert message.is_worth_reading_on(request)


def test_who_does_not_ask_is_not_told():
    request, sent = prepared("Content-Length: 5\r\n", b"hello")

    assert request.body.read() == b"hello"
    assert sent.data == b""


@pytest.mark.parametrize(
    ("fields", "is_worth"),
    [
        ("", True),
        (f"Content-Length: {MAX_FORGOTTEN}\r\n", True),
        (f"Content-Length: {MAX_FORGOTTEN + 1}\r\n", False),
        ("Transfer-Encoding: chunked\r\n", False),
    ],
)
def test_little_is_read_on_for_the_sake_of_the_next_request(fields, is_worth):
    request, _ = prepared(fields)

    assert message.is_worth_reading_on(request) is is_worth


def test_behind_a_body_that_broke_nothing_is_read():
    request, _ = prepared("Transfer-Encoding: chunked\r\n", b"5\r\nhelloXX")

    with pytest.raises(Exception, match="XX"):
        request.body.read()
    assert not message.is_worth_reading_on(request)


@pytest.mark.parametrize("size", ["80000001", "f" * 16, "f" * 400])
def test_a_chunk_that_nobody_could_take_is_refused_before_it_comes(size):
    request, _ = prepared("Transfer-Encoding: chunked\r\n", size.encode() + b"\r\nhello")

    with pytest.raises(InvalidChunkSize):
        request.body.read(1)


@pytest.mark.parametrize(
    ("fields", "pieces", "n_sends"),
    [
        ([("Content-Length", "5")], [b"hello"], 1),
        ([("Content-Length", "5")], [b"he", b"llo"], 3),
        ([("Content-Length", "70000")], [bytes(70_000)], 3),
        ([], [b"hello"], 2),  # the last chunk among them
        ([], [b"he", b"llo"], 3),
        ([], [bytes(70_000)], 4),
    ],
    ids=["whole", "in pieces", "long", "chunked", "chunks", "long chunks"],
)
def test_a_short_body_that_comes_whole_and_a_short_first_chunk_leave_with_the_headers(fields, pieces, n_sends):
    request, _ = prepared("")
    client = Sent()
    answer = HttpResponse(request, client, Config())
    answer.start_response("200 OK", fields)

    for piece in pieces:
        answer.write(piece)
    answer.close()

    head, _, body = client.data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (body if fields else unchunked(body)) == b"".join(pieces)
    assert client.n_sends == n_sends
    assert answer.headers_sent


def unchunked(body: bytes) -> bytes:
    """Returns what is in a whole body of chunks."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    data: bytes = Request(Config(), IterUnreader([head + body]), ("127.0.0.1", 1)).body.read()
    return data


def test_an_empty_first_piece_of_a_stream_sends_the_head():
    request, _ = prepared("")
    client = Sent()
    answer = HttpResponse(request, client, Config())
    answer.start_response("200 OK", [("Content-Type", "text/event-stream")])

    answer.write(b"")

    assert client.data.startswith(b"HTTP/1.1 200 OK\r\n")
    assert client.data.partition(b"\r\n\r\n")[1:] == (b"\r\n\r\n", b"")  # an empty chunk would end the body


@pytest.mark.parametrize(("connection", "closes"), [("keep-alive", False), ("close", True)])
def test_an_answer_in_no_log_keeps_no_fields_but_those_that_end_the_connection(connection, closes):
    request, _ = prepared(f"Connection: {connection}\r\nX-Long: {'x' * 1000}\r\n")
    client = Sent()
    answer = UnloggedResponse(request, client, Config())
    answer.start_response("200 OK", [("Content-Type", "text/event-stream")])

    answer.write(b"first")
    answer.write(b"second")
    answer.close()

    assert b"Content-Type: text/event-stream\r\n" in client.data
    assert client.data.endswith(b"\r\n\r\n5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n")
    assert not answer.headers
    assert request.headers == [("CONNECTION", connection)]
    assert answer.should_close() is closes


def test_what_an_application_writes_as_errors_goes_to_the_servers_error_log(monkeypatch: pytest.MonkeyPatch):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    monkeypatch.setattr(logging.getLogger("gunicorn.error"), "handlers", [handler])
    settings = Config()
    settings.set("errorlog", "errors.log")  # by default it is stderr, whatever handlers there are
    errors = LateErrors(settings)

    errors.write("one\n")
    errors.writelines(["two\n", "three\n"])
    errors.flush()

    assert written.getvalue() == "one\ntwo\nthree\n"


def test_a_body_is_given_as_it_comes_and_what_follows_it_is_kept():
    unreader = IterUnreader([b"he", b"lloPOST"])
    reader = PromptLengthReader(unreader, 5)

    pieces = [reader.read(100) for _ in range(3)]

    assert pieces == [b"he", b"llo", b""]
    assert unreader.read() == b"POST"


def test_a_large_body_is_read_to_its_end_and_the_next_request_after_it():
    body = bytes(300_000)
    request, _ = prepared(f"Content-Length: {len(body)}\r\n", body + b"GET / HTTP/1.1")

    assert b"".join(iter(lambda: request.body.read(131_072), b"")) == body
    assert message.is_read_out(request)
    assert request.unreader.read() == b"GET / HTTP/1.1"
