"""Addresses, and requests to them."""

from __future__ import annotations

import pytest

from corosrv.base.errors import BenchError
from corosrv.client.bench.target import parse


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080/v1"),
        ("https://api.example/llm", "https://api.example:443/llm/v1"),
        ("http://[::1]:9", "http://[::1]:9/v1"),
        ("http://localhost", "http://localhost:80/v1"),
    ],
)
def test_an_address_may_lack_its_v1_and_its_port(given, url):
    assert parse(given).url == url


def test_a_target_is_called_by_its_address_or_a_name():
    assert parse("http://127.0.0.1:8080").name == "127.0.0.1:8080"
    assert parse("http://127.0.0.1:8080", "mine").name == "mine"


@pytest.mark.parametrize(
    "given",
    ["", "127.0.0.1:8080", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://a@x", "http://x?y=1"],
)
def test_what_is_no_address_is_refused(given):
    with pytest.raises(BenchError):
        parse(given)


def test_a_request_is_whole():
    sent = parse("http://127.0.0.1:80", api_key="secret").request("POST", "/completions", b"{}")

    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:80\r\n")
    assert {b"Authorization: Bearer secret", b"Content-Length: 2"} <= set(head.split(b"\r\n"))
    assert body == b"{}"


def test_a_key_cannot_smuggle_a_header():
    with pytest.raises(BenchError, match="API key"):
        parse("http://x", api_key="a\r\nX-Admin: 1")
