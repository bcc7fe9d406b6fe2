"""Keys, request ids, and lines of the access log."""

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import Forbidden, Unauthorized
from corosrv.web.accounts import Accounts
from corosrv.web.http.access import Access, Keys, redacted, request_id


def request(method: str = "GET", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(EnvironBuilder(method=method, headers=named).get_environ())


# Keys.


def test_without_keys_everybody_is_let_in():
    assert Access(Accounts(()), (), ()).check(request()) == ("", None)


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
    Keys(Accounts(("one", "two"))).check(request(**headers))


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
        Keys(Accounts(("one", "two"))).check(request(**headers))


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_outside_ascii_is_let_in_as_curl_and_as_browsers_send_it(encoding):
    sent = "schlüssel".encode(encoding).decode("latin-1")  # as WSGI has it

    assert Keys(Accounts(("schlüssel",))).check(request(Authorization=f"Bearer {sent}"))


@pytest.mark.parametrize("key", ["schl\udcffssel", "鍵"])
def test_keys_of_any_characters_are_let_in(key):
    sent = key.encode("utf-8", "surrogateescape").decode("latin-1")

    assert Keys(Accounts((key,))).check(request(X_Api_Key=sent))
    with pytest.raises(Unauthorized):
        Keys(Accounts((key,))).check(request(X_Api_Key="schl?ssel"))


def test_the_refusal_does_not_repeat_the_key():
    with pytest.raises(Unauthorized) as refused:
        Keys(Accounts(("one",))).check(request(Authorization="Bearer secret"))

    assert "secret" not in str(refused.value)


# Keys, pages and names together.


def test_without_keys_a_foreign_page_and_a_foreign_name_are_refused():
    access = Access(Accounts(), (), ())

    with pytest.raises(Forbidden):
        access.check(request(Origin="https://a.example"))
    with pytest.raises(Forbidden):
        access.check(Request({**request().environ, "HTTP_HOST": "a.example", "SERVER_NAME": "127.0.0.1"}))
    assert access.check(request(Origin="http://localhost:3000", Host="localhost:8080")) == ("", None)


def test_with_keys_any_page_and_any_name_may_call_that_has_one():
    access = Access(Accounts(("one",)), (), ())

    assert access.check(request(Origin="https://a.example", Host="a.example", Authorization="Bearer one"))
    with pytest.raises(Unauthorized):
        access.check(request(Origin="https://a.example", Host="a.example"))


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
        ("/?a=1;api_key=k;b=2", "/?a=1;api_key=***;b=2"),
        ("/v1?Bearer=k", "/v1?Bearer=***"),
        ("/v1?X-Amz-Credential=k&X-Amz-Signature=s", "/v1?X-Amz-Credential=***&X-Amz-Signature=***"),
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
    keys = Keys(Accounts(("one", "two")))
    names = {keys.check(request(Authorization=f"Bearer {key}"))[0] for key in ("one", "two", "one")}

    assert len(names) == 2
    assert not names & {"", "one", "two"}
