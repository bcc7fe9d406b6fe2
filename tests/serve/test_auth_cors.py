"""Keys decide who may ask, and origins from which page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Answer, Connection, chat, request

ORIGIN = "https://page.example"


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Server:
    """Two keys, and pages of this machine only."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(api_keys="first-key, second-key", cors_origins="localhost")


@pytest.fixture
def connection(guarded: Server) -> Iterator[Connection]:
    with guarded.connect() as connection:
        yield connection


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer first-ke"},
        {"Authorization": "Bearer first-key2"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer"},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "Bearer first-key, second-key"},
        {"Authorization": "Bearer \xff"},
        {"X-Api-Key": "wrong"},
        {"X-Api-Key": ""},
    ],
    ids=str,
)
def test_without_a_right_key_nothing_is_answered(connection: Connection, headers: dict[str, str]) -> None:
    answers = [
        connection.post(chat(max_tokens=1), headers=headers),
        connection.post(chat(max_tokens=1, stream=True), headers=headers),
        connection.post(b"not JSON", "/v1/completions", headers),
        connection.ask("GET", "/v1/models", headers=headers),
        connection.ask("GET", "/v1/models/synthetic", headers=headers),
        connection.ask("GET", "/metrics", headers=headers),
        connection.ask("GET", "/v1/models?api_key=first-key", headers=headers),
    ]

    for answer in answers:
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.error["type"] == "authentication_error"
        assert answer.error["code"] == "invalid_api_key"
        assert "key" not in answer.headers.get("location", "")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer second-key"},
        {"Authorization": "BEARER first-key"},
        {"X-Api-Key": "second-key"},
    ],
    ids=str,
)
def test_with_any_right_key_all_is_answered(connection: Connection, headers: dict[str, str]) -> None:
    assert connection.post(chat(max_tokens=1), headers=headers).status == 200
    assert connection.ask("GET", "/v1/models", headers=headers).status == 200
    assert connection.ask("GET", "/metrics", headers=headers).status == 200


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("GET", "/v1/health"), ("GET", "/health/live"), ("OPTIONS", CHAT)]
)
def test_health_and_options_need_no_key(connection: Connection, method: str, path: str) -> None:
    assert connection.ask(method, path).status in (200, 204)


def test_a_missing_key_is_told_before_the_body_is_read(connection: Connection) -> None:
    connection.send(request("POST", CHAT, None, {"Content-Length": "1000000"}))  # and none of the body

    assert connection.answer().status == 401


def test_a_key_is_never_in_the_log(guarded: Server, connection: Connection) -> None:
    connection.post(chat(max_tokens=1), headers={"Authorization": "Bearer first-key"})
    connection.post(chat(max_tokens=1), headers={"Authorization": "Bearer wrong-key-of-mine"})

    assert "first-key" not in guarded.log
    assert "wrong-key-of-mine" not in guarded.log


# Origins


def cross_origin(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def every_kind(connection: Connection, headers: dict[str, str]) -> list[Answer]:
    """Answers of every kind: whole, stream, refused, unknown path, wrong verb."""
    return [
        connection.post(chat(max_tokens=1), headers=headers),
        connection.post(chat(max_tokens=1, stream=True), headers=headers),
        connection.post(b"{}", headers=headers),
        connection.ask("GET", "/nowhere", headers=headers),
        connection.ask("GET", CHAT, headers=headers),
        connection.ask("GET", "/health", headers=headers),
    ]


LOCAL = "http://localhost:3000"


def test_without_keys_local_pages_may_read_every_answer(server: Server) -> None:
    with server.connect() as connection:
        for answer in every_kind(connection, {"Origin": LOCAL}):
            assert cross_origin(answer) == {
                "access-control-allow-origin": LOCAL,
                "access-control-expose-headers": "X-Request-Id, Request-Id, Retry-After, Idempotency-Replayed, "
                "X-Should-Retry, X-Corosrv-Ignored, X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, "
                "X-RateLimit-Reset-Requests, X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, "
                "X-RateLimit-Reset-Tokens",
            }
            assert "origin" in answer.headers["vary"].lower()


def test_without_keys_other_pages_may_not_call(server: Server) -> None:
    """A browser sends such a request without asking first: the answer alone would be kept from the page."""
    with server.connect() as connection:
        before = server.metric("prompt_tokens_total")
        answer = connection.post(chat(max_tokens=1), headers={"Origin": ORIGIN, "Content-Type": "text/plain"})

    assert answer.status == 403
    assert (answer.error["type"], answer.error["code"]) == ("permission_error", "origin_not_allowed")
    assert cross_origin(answer) == {}
    assert server.metric("prompt_tokens_total") == before


def test_without_keys_a_name_of_somebody_elses_may_not_call(server: Server) -> None:
    with server.connect() as connection:
        answer = connection.ask("GET", "/v1/models", headers={"Host": f"evil.example:{server.port}"})
    with server.connect() as connection:
        local = connection.ask("GET", "/v1/models", headers={"Host": f"127.0.0.1:{server.port}"})

    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    assert local.status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_is_told_by_any_name(server: Server, path: str) -> None:
    with server.connect() as connection:
        assert connection.ask("GET", path, headers={"Host": "probe.example"}).status == 200


def test_with_keys_any_page_and_any_name_may_call(start: Servers) -> None:
    server = start.start(api_keys="k")
    headers = {"Origin": ORIGIN, "Host": "api.example", "Authorization": "Bearer k"}
    with server.connect() as connection:
        answer = connection.post(chat(max_tokens=1), headers=headers)

    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in answer.headers


def test_an_operator_names_pages_and_hosts(start: Servers) -> None:
    server = start.start(cors_origins=ORIGIN, allowed_hosts="api.example")
    with server.connect() as connection:
        answer = connection.post(chat(max_tokens=1), headers={"Origin": ORIGIN, "Host": "api.example"})

    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-credentials"] == "true"


def test_without_an_origin_there_are_no_such_headers(server: Server) -> None:
    with server.connect() as connection:
        for answer in every_kind(connection, {}):
            assert cross_origin(answer) == {}


def test_a_preflight_of_openais_own_client_is_allowed_what_it_asks_for(server: Server) -> None:
    names = (
        "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version,"
        "x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout"
    )
    asked = {"Origin": LOCAL, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
    with server.connect() as connection:
        answer = connection.ask("OPTIONS", CHAT, headers=asked)

    assert answer.status in (200, 204)
    allowed = cross_origin(answer)
    assert allowed["access-control-allow-origin"] == LOCAL
    assert "POST" in allowed["access-control-allow-methods"]
    assert allowed["access-control-allow-headers"] == names


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:5000"]
)
def test_pages_of_this_machine_are_let_in_by_the_localhost_setting(connection: Connection, origin: str) -> None:
    preflight = connection.ask("OPTIONS", CHAT, headers={"Origin": origin})
    refused = connection.post(chat(), headers={"Origin": origin})

    for answer in (preflight, refused):
        assert cross_origin(answer)["access-control-allow-origin"] == origin
    assert refused.status == 401
    assert "access-control-allow-credentials" not in cross_origin(refused)


@pytest.mark.parametrize(
    "origin",
    [ORIGIN, "null", "http://localhost.evil.example", "http://evil.example/localhost", "http://localhost@evil.example",
     "http://["],
)  # fmt: skip
def test_other_pages_are_not(connection: Connection, origin: str) -> None:
    for method in ("OPTIONS", "POST"):
        answer = connection.ask(method, CHAT, headers={"Origin": origin})

        assert cross_origin(answer) == {}
        assert "origin" in answer.headers["vary"].lower()
