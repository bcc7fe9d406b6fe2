"""Which web pages may call, and what their browsers are told."""

import pytest
from flask import Request, Response
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import Forbidden
from corosrv.web.http.access import Origins

PAGE = "https://a.example"


def request(method: str = "GET", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(EnvironBuilder(method=method, headers=named).get_environ())


def allowed(origins: Origins, method: str = "GET", **headers: str) -> Response:
    answer = Response()
    origins.allow(request(method, **headers), answer)
    return answer


def may_call(origins: Origins, **headers: str) -> bool:
    try:
        origins.check(request(**headers))
    except Forbidden:
        return False
    return True


def test_an_answer_to_no_page_has_no_cross_origin_headers():
    answer = allowed(Origins(("*",), is_guarded=False))

    assert not [name for name, _ in answer.headers if name.startswith("Access-Control")]


@pytest.mark.parametrize(
    ("origins", "origin", "is_allowed"),
    [
        (("*",), PAGE, True),
        (("*",), "null", True),
        ((PAGE,), PAGE, True),
        ((PAGE,), "https://b.example", False),
        ((PAGE,), "http://a.example", False),
        ((PAGE,), "https://a.example:8443", False),
        ((PAGE,), "https://a.example.evil.example", False),
        ((PAGE,), "http://localhost:3000", False),
        (("localhost",), "http://localhost", True),
        (("localhost",), "http://localhost:5173", True),
        (("localhost",), "https://127.0.0.1:8443", True),
        (("localhost",), "http://127.8.9.1", True),
        (("localhost",), "http://[::1]:3000", True),
        (("localhost",), "http://tauri.localhost", True),
        (("localhost",), "tauri://localhost", True),
        (("localhost",), "vscode-webview://1abc-d", True),
        (("localhost",), "http://localhost.evil.example", False),
        (("localhost",), "http://127.0.0.1.evil.example", False),
        (("localhost",), "http://evil.example/localhost", False),
        (("localhost",), "http://localhost@evil.example", False),
        (("localhost",), "http://192.168.0.1", False),
        (("localhost",), "http://[::1", False),
        (("localhost",), "file://", True),
        (("localhost",), "null", False),
        ((PAGE, "localhost"), PAGE, True),
    ],
)
@pytest.mark.parametrize("is_guarded", [True, False])
def test_exactly_the_named_origins_may_call(origins, origin, is_allowed, is_guarded):
    chosen = Origins(origins, is_guarded=is_guarded)
    answer = allowed(chosen, Origin=origin)

    assert may_call(chosen, Origin=origin) == is_allowed
    assert answer.headers.get("Access-Control-Allow-Origin") == (origin if is_allowed else None)
    assert "Origin" in answer.vary


@pytest.mark.parametrize(
    ("is_guarded", "origin", "is_allowed"),
    [(True, PAGE, True), (False, PAGE, False), (True, "http://localhost", True), (False, "http://localhost", True)],
)
def test_where_none_is_named_keys_decide_whether_any_or_local_pages_may_call(is_guarded, origin, is_allowed):
    chosen = Origins((), is_guarded=is_guarded)

    assert may_call(chosen, Origin=origin) == is_allowed
    assert ("Access-Control-Allow-Origin" in allowed(chosen, Origin=origin).headers) == is_allowed


def test_who_is_no_page_may_call():
    assert may_call(Origins((), is_guarded=False))


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"Host": "box.lan:8080", "Origin": "http://box.lan:8080"}, True),
        ({"Host": "127.0.0.1:9000", "Origin": PAGE, "Sec_Fetch_Site": "same-origin"}, True),
        ({"Host": "127.0.0.1:9000", "Origin": PAGE, "Sec_Fetch_Site": "cross-site"}, False),
        ({"Host": "box.lan:8080", "Origin": "http://box.lan:9090"}, False),
        ({"Host": "box.lan:8080", "Origin": "null"}, False),
    ],
)
def test_the_servers_own_page_may_call(headers, is_own):
    assert may_call(Origins((), is_guarded=False), **headers) == is_own


def test_a_refusal_names_page_and_setting():
    with pytest.raises(Forbidden, match=r"https://a\.example.*COROSRV_CORS_ORIGINS") as refused:
        Origins((), is_guarded=False).check(request(Origin=PAGE))

    assert refused.value.code == "origin_not_allowed"


@pytest.mark.parametrize(
    ("origins", "origin", "has_credentials"),
    [
        ((PAGE,), PAGE, True),
        (("*", PAGE), PAGE, True),
        (("*",), PAGE, False),
        (("localhost",), "http://localhost", False),
    ],
)
def test_credentials_are_for_origins_that_are_named(origins, origin, has_credentials):
    answer = allowed(Origins(origins, is_guarded=True), Origin=origin)

    assert ("Access-Control-Allow-Credentials" in answer.headers) == has_credentials


def test_a_preflight_is_allowed_what_it_asks_for():
    names = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
    answer = allowed(
        Origins((), is_guarded=True),
        "OPTIONS",
        Origin=PAGE,
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers=names,
    )

    assert "PUT" in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Headers"] == names
    assert "Origin" in answer.vary
    assert "Access-Control-Request-Headers" in answer.vary


@pytest.mark.parametrize("names", ["a\tb: c;", "x" * 5000, "größe", ""])
def test_a_preflight_never_gets_back_what_is_no_list_of_names(names):
    answer = allowed(Origins((), is_guarded=True), "OPTIONS", Origin=PAGE, Access_Control_Request_Headers=names)

    assert "Access-Control-Allow-Headers" not in answer.headers
    assert "PUT" in answer.headers["Access-Control-Allow-Methods"]


def test_a_preflight_from_elsewhere_is_told_nothing():
    answer = allowed(Origins((), is_guarded=False), "OPTIONS", Origin=PAGE, Access_Control_Request_Method="POST")

    assert not [name for name, _ in answer.headers if name.startswith("Access-Control")]


def test_a_page_may_read_the_request_id():
    answer = allowed(Origins((), is_guarded=True), Origin=PAGE)

    assert "X-Request-Id" in answer.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("asked", [True, False])
def test_a_page_of_the_internet_may_call_a_private_address_when_it_asks_to(asked):
    headers = {"Access_Control_Request_Private_Network": "true"} if asked else {}
    answer = allowed(Origins((PAGE,), is_guarded=False), "OPTIONS", Origin=PAGE, **headers)

    assert ("Access-Control-Allow-Private-Network" in answer.headers) == asked
