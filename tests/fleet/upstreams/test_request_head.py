"""Heads of requests."""

from __future__ import annotations

import pytest

from corosrv.fleet.upstreams.exchange import request_head


def test_a_head_has_the_upstreams_name_and_the_bodys_length():
    head = request_head("POST", "/v1/x?a=%20", "[::1]:8080", (("X-A", "\xe9 b"), ("Host", "other")), 3)

    assert head == b"POST /v1/x?a=%20 HTTP/1.1\r\nHost: [::1]:8080\r\nX-A: \xe9 b\r\nContent-Length: 3\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "n_body", "says"), [("GET", 0, False), ("HEAD", 0, False), ("POST", 0, True), ("GET", 1, True)]
)
def test_a_length_is_there_where_a_body_may_be(method: str, n_body: int, says: bool):
    assert (b"Content-Length" in request_head(method, "/", "h", (), n_body)) is says


@pytest.mark.parametrize(
    ("method", "target", "name", "value"),
    [
        ("GET /", "/", "X", "a"), ("", "/", "X", "a"), ("GET", "", "X", "a"), ("GET", "/ HTTP/1.1\r\nX:", "X", "a"),
        ("GET", "/\x7f", "X", "a"), ("GET", "/\u20ac", "X", "a"), ("GET", "/", "", "a"), ("GET", "/", "X:", "a"),
        ("GET", "/", "X\n", "a"), ("GET", "/", "X", "a\rb"), ("GET", "/", "X", "a\n b"), ("GET", "/", "X", "a\0"),
        ("GET", "/", "X", "\u20ac"), ("GET", "/\n", "X", "a"), ("GET", "/", "X", "a\n"),
    ],
)  # fmt: skip
def test_what_would_be_no_head_is_refused(method: str, target: str, name: str, value: str):
    with pytest.raises(ValueError, match=r"is no|more than one line|can't encode"):
        request_head(method, target, "h", ((name, value),), 0)
