"""URLs that requests are made to."""

from __future__ import annotations

import pytest

from corosrv.base.outgoing import is_http_url, is_same_site


@pytest.mark.parametrize(
    "url", ["http://[::1]:8080/x?y#z", "HTTPS://example.test", "http://user:pass@host/", "http://ä.de"]
)
def test_urls_may_have_ports_addresses_and_logins(url: str):
    assert is_http_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "//host",
        "ftp://host",
        "file:///etc",
        "http://",
        "http://:80",
        "http://a b",
        "http://a:0",
        "http://a:x",
    ],
)
def test_other_urls_are_none(url: str):
    assert not is_http_url(url)


@pytest.mark.parametrize("breaks", ["\r\n", "\t", "\0", "\x7f", "\u2028"])
def test_nothing_breaks_out_of_a_request_line(breaks: str):
    assert not is_http_url(f"http://host/{breaks}x")


@pytest.mark.parametrize(
    ("url", "other", "is_same"),
    [
        ("http://host/a", "http://host:80/b", True),
        ("http://HOST/a", "http://host/", True),
        ("http://host/", "https://host/", True),
        ("https://host/", "https://host:443/", True),
        ("https://host/", "http://host/", False),
        ("http://host:8080/", "https://host/", False),
        ("http://host/", "http://host:8080/", False),
        ("http://host/", "http://other/", False),
    ],
)
def test_a_site_is_an_origin_and_its_upgrade_to_https(url: str, other: str, is_same: bool):
    assert is_same_site(url, other) is is_same
