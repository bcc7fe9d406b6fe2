"""Keys, cross-origin headers and request ids."""

import pytest
from flask import Request, Response
from werkzeug.test import EnvironBuilder

from corosrv.errors import Unauthorized
from corosrv.http.access import Keys, Origins, redacted, request_id


def request(method: str = "GET", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(EnvironBuilder(method=method, headers=named).get_environ())


# Keys.


def test_without_keys_everybody_is_let_in():
    Keys(()).check(request())


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer one"},
        {"Authorization": "bearer two"},
        {"Authorization": "BEARER two"},
        {"X_Api_Key": "one"},
        {"Authorization": "Basic xyz", "X_Api_Key": "one"},
    ],
)
def test_a_known_key_is_let_in(headers):
    Keys(("one", "two")).check(request(**headers))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer three"},
        {"Authorization": "Bearer on"},
        {"Authorization": "Bearer ones"},
        {"Authorization": "Bearer one,two"},
        {"Authorization": "Bearer \xe9"},
        {"Authorization": "Basic one"},
        {"Authorization": "one"},
        {"X_Api_Key": ""},
        {"X_Api_Key": "three"},
        {"Authorization": "Bearer three", "X_Api_Key": "one"},
    ],
)
def test_anything_else_is_not(headers):
    with pytest.raises(Unauthorized):
        Keys(("one", "two")).check(request(**headers))


def test_the_refusal_does_not_repeat_the_key():
    with pytest.raises(Unauthorized) as refused:
        Keys(("one",)).check(request(Authorization="Bearer secret"))

    assert "secret" not in str(refused.value)


# Cross-origin headers.


def allowed(origins: tuple[str, ...], origin: str | None, method: str = "GET") -> Response:
    answer = Response()
    Origins(origins).allow(request(method, **({"Origin": origin} if origin else {})), answer)
    return answer


def test_an_answer_to_no_page_has_no_cross_origin_headers():
    assert not [name for name, _ in allowed(("*",), None).headers if name.startswith("Access-Control")]


@pytest.mark.parametrize(
    ("origins", "origin", "is_allowed"),
    [
        (("*",), "https://a.example", True),
        (("*",), "null", True),
        (("https://a.example",), "https://a.example", True),
        (("https://a.example",), "https://b.example", False),
        (("https://a.example",), "http://a.example", False),
        (("https://a.example",), "https://a.example:8443", False),
        (("https://a.example",), "https://a.example.evil.example", False),
        (("localhost",), "http://localhost", True),
        (("localhost",), "http://localhost:5173", True),
        (("localhost",), "https://127.0.0.1:8443", True),
        (("localhost",), "http://[::1]:3000", True),
        (("localhost",), "http://localhost.evil.example", False),
        (("localhost",), "http://evil.example/localhost", False),
        (("localhost",), "http://localhost@evil.example", False),
        (("localhost",), "http://192.168.0.1", False),
        (("localhost",), "http://[::1", False),
        (("localhost",), "null", False),
        (("https://a.example", "localhost"), "https://a.example", True),
        ((), "https://a.example", False),
    ],
)
def test_only_allowed_origins_are_reflected(origins, origin, is_allowed):
    answer = allowed(origins, origin)

    assert answer.headers.get("Access-Control-Allow-Origin") == (origin if is_allowed else None)
    assert "Origin" in answer.vary


def test_credentials_go_with_any_origin_only():
    assert allowed(("*",), "https://a.example").headers["Access-Control-Allow-Credentials"] == "true"
    named = allowed(("https://a.example",), "https://a.example")
    assert "Access-Control-Allow-Credentials" not in named.headers


def test_a_preflight_is_told_methods_and_headers_by_name():
    headers = allowed(("*",), "https://a.example", "OPTIONS").headers

    assert headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE, OPTIONS"
    assert headers["Access-Control-Allow-Headers"] == "authorization, content-type, x-api-key"


def test_a_preflight_from_elsewhere_is_told_nothing():
    headers = allowed(("localhost",), "https://a.example", "OPTIONS").headers

    assert "Access-Control-Allow-Methods" not in headers


# Request ids.


@pytest.mark.parametrize("sent", ["abc", "a.b_c:d-1", "x" * 128])
def test_a_sane_id_of_the_client_is_kept(sent):
    assert request_id(request(X_Request_Id=sent)) == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a;b", "é", "<script>"])
def test_any_other_is_replaced(sent):
    assert request_id(request(X_Request_Id=sent)).startswith("req_")


def test_new_ids_differ():
    assert request_id(request()) != request_id(request())


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("/v1/models?api_key=k", "/v1/models?api_key=***"),
        ("/?a=1&Token=k&b=2", "/?a=1&Token=***&b=2"),
        ("/?client_secret=k#x", "/?client_secret=***#x"),
        ("/v1/models?limit=5", "/v1/models?limit=5"),
        ("/keys/5", "/keys/5"),
    ],
)
def test_what_looks_like_a_key_in_a_url_is_not_shown(uri, shown):
    query = uri.partition("?")[2]
    hidden = redacted({"RAW_URI": uri, "HTTP_REFERER": uri, "QUERY_STRING": query, "PATH_INFO": "/"})

    assert (hidden["RAW_URI"], hidden["HTTP_REFERER"]) == (shown, shown)
    assert hidden["QUERY_STRING"] == shown.partition("?")[2]


def test_callers_are_told_apart_and_their_keys_are_not_in_their_names():
    keys = Keys(["one", "two"])
    names = {keys.check(request(Authorization=f"Bearer {key}")) for key in ("one", "two", "one")}

    assert len(names) == 2
    assert not names & {"", "one", "two"}
    assert Keys([]).check(request()) == ""
