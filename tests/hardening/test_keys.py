"""Rows 16 to 21: keys, browsers, and what callers must not know of each other."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.hardening.watch import HealthWatch
from tests.serve.server import APP, Server, Servers
from tests.serve.wire import CHAT, Connection, chat, request

KEY = "correct-horse-battery"


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(
        *APP, "--access-logfile", "-", api_keys=f"{KEY},another-key", cors_origins="localhost,https://app.example"
    )


@pytest.fixture
def connection(guarded: Server) -> Iterator[Connection]:
    with HealthWatch(guarded), guarded.connect() as connection:
        yield connection


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        bearer("wrong"),
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        bearer(" " + KEY),
        bearer(KEY.upper()),
        bearer(f"{KEY},another-key"),
        bearer(""),
        bearer("k" * 8000),
        bearer("\xff\xfe"),
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Token {KEY}"},
        {"Authorization": "Bearer"},
        {"X-Api-Key": ""},
        {"X-Api-Key": KEY + KEY},
        {"Cookie": f"api_key={KEY}"},
    ],
)
def test_h016_without_a_good_key_nothing_is_read(connection: Connection, fields: dict[str, str]) -> None:
    answer = connection.ask("POST", CHAT, b"no JSON at all", fields)

    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.error["code"] == "invalid_api_key"
    assert KEY.encode() not in answer.body


def test_h016_two_keys_are_none(connection: Connection) -> None:
    twice = f"Authorization: Bearer {KEY}\r\n" * 2
    connection.send(f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{twice}\r\n".encode())

    assert connection.answer().status in (400, 401)


def test_h016_a_key_in_the_url_is_no_key_and_is_not_logged(guarded: Server, connection: Connection) -> None:
    for name in ("key", "api_key", "access_token", "Authorization"):
        assert connection.ask("GET", f"/v1/models?a=b&{name}={KEY}&c=d").status == 401
        assert connection.ask("GET", "/v1/models", headers={"Referer": f"http://a/?{name}={KEY}"}).status == 401
    connection.send(f"GET /{KEY}?key={KEY} HTP/1.1\r\n\r\n".encode())
    assert connection.answer().status == 505

    assert "/v1/models?a=b&key=***&c=d" in guarded.log
    assert KEY not in guarded.log


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/metrics", "/v1/models/x", "/nowhere", "/v1/models/x/health"])
def test_h017_no_method_goes_round_the_key(connection: Connection, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"):
        answer = connection.ask(method, path, b"{}", {"X-HTTP-Method-Override": "OPTIONS"})

        assert answer.status in (401, 403, 404), f"{method} {path}"


@pytest.mark.parametrize("fields", [bearer(KEY), {"X-Api-Key": "another-key"}, {"authorization": f"bEARER {KEY}"}])
def test_h016_a_good_key_opens(connection: Connection, fields: dict[str, str]) -> None:
    assert connection.ask("GET", "/v1/models", headers=fields).status == 200


def test_h018_thousands_of_wrong_keys_are_a_few_lines_of_log(start: Servers) -> None:
    n_asked = 1000
    server = start.start(api_keys=KEY)
    began = time.monotonic()
    with HealthWatch(server), server.connect() as connection:
        for _ in range(n_asked // 100):
            connection.send(request("GET", "/v1/models", None, bearer("wrong")) * 100)
            assert {connection.answer().status for _ in range(100)} == {401}
    seconds = time.monotonic() - began

    lines = told(server)
    assert 1 <= len(lines) <= seconds + 2
    assert wait_for_all(server, n_asked)


def told(server: Server) -> list[int]:
    return [int(n) for n in re.findall(r"(\d+) requests had no key, or a wrong one", server.log)]


def wait_for_all(server: Server, n_asked: int) -> bool:
    deadline = time.monotonic() + 30
    while sum(told(server)) < n_asked and time.monotonic() < deadline:
        server.health()
    return sum(told(server)) == n_asked


ALLOWED = [
    "http://localhost",
    "http://localhost:3000",
    "https://127.0.0.1:8443",
    "http://[::1]:80",
    "https://app.example",
]
FOREIGN = [
    "localhost", "null", "http://localhost.evil.example", "http://evil.example#localhost", "http://user@localhost",
    "http://evil.example/localhost", "https://app.example.evil.example", "http://app.example", "ftp://localhost",
    "http://localhost:3000/", "http://localhost:99999999", "HTTP://EVIL.EXAMPLE", "*", "https://app.example:444",
]  # fmt: skip


@pytest.mark.parametrize("origin", ALLOWED)
def test_h019_a_page_that_was_listed_may_call(connection: Connection, origin: str) -> None:
    answer = connection.ask("OPTIONS", CHAT, headers={"Origin": origin, "Access-Control-Request-Method": "POST"})

    assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", FOREIGN)
def test_h019_other_pages_may_not(connection: Connection, origin: str) -> None:
    for method in ("OPTIONS", "GET"):
        answer = connection.ask(method, "/v1/models", headers={"Origin": origin} | bearer(KEY))

        assert not [name for name in answer.headers if name.startswith("access-control-allow")]
        assert "Origin" in answer.headers["vary"]


def test_h020_ids_cannot_be_guessed_and_unknown_ones_are_not_found(connection: Connection) -> None:
    ids = {connection.post(chat(max_tokens=1), headers=bearer(KEY)).json["id"] for _ in range(5)}

    assert len(ids) == 5
    assert all(re.fullmatch(r"chatcmpl-[0-9a-f]{32,}", one) for one in ids)
    for path in (f"/v1/models/{ids.pop()}", "/v1/responses/resp_unknown", "/v1/conversations/1"):
        for method in ("GET", "DELETE"):
            assert connection.ask(method, path, headers=bearer("another-key")).status in (404, 405)


@pytest.mark.model
def test_h021_what_one_key_has_computed_no_other_can_tell(start: Servers) -> None:
    server = start.start(model="", ctx=512, slots=2, threads=1, api_keys="mine,yours")
    body = chat("The secret of the harbour master is that " * 8, max_tokens=1, temperature=0)

    def cached(key: str) -> int:
        with server.connect(timeout=60) as connection:
            usage = connection.post(body, headers=bearer(key)).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("mine") == 0
    assert cached("mine") > 50
    assert cached("yours") == 0
    assert cached("yours") > 50
