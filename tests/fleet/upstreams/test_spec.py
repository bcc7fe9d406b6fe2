"""What an operator may say of an upstream."""

from __future__ import annotations

import math

import pytest

from corosrv.base.errors import Refused
from corosrv.fleet.upstreams.aborter import AbortKind
from corosrv.fleet.upstreams.spec import MAX_CONCURRENCY, MAX_WEIGHT, UpstreamSpec, parse


def test_a_url_alone_is_enough():
    spec = parse("http://a:8080")

    assert spec == UpstreamSpec(url="http://a:8080", models=(), concurrency=None, weight=1.0)
    assert spec.api_key_env == ""


def test_how_requests_are_aborted_follows_the_url():
    assert parse("http://a").abort is AbortKind.AUTO
    assert parse("http://a?abort=sglang").abort is AbortKind.SGLANG
    with pytest.raises(Refused, match="auto, none, sglang, not 'vllm'") as caught:
        parse("http://a?abort=vllm")
    assert caught.value.param == "abort"


def test_options_follow_the_url():
    spec = parse(" https://a:8443/base/?concurrency=16&model=small&model=x%2Fbig&weight=0.5&api_key_env=KEY_2 \n")

    assert spec.url == "https://a:8443/base"
    assert spec.models == ("small", "x/big")
    assert (spec.concurrency, spec.weight, spec.api_key_env) == (16, 0.5, "KEY_2")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("HTTP://Example.COM:80/", "http://example.com"),
        ("https://a:443", "https://a"),
        ("http://a:443", "http://a:443"),
        ("http://a:", "http://a"),
        ("http://a/v1//", "http://a/v1"),
        ("http://a/Path", "http://a/Path"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://[0:0::1]", "http://[::1]"),
        ("http://Bücher.example:8080", "http://xn--bcher-kva.example:8080"),
        ("http://xn--bcher-kva.example", "http://xn--bcher-kva.example"),
        ("http://model_1.my-net.:80", "http://model_1.my-net."),
        ("http://" + ".".join(["a" * 63] * 3), "http://" + ".".join(["a" * 63] * 3)),
    ],
)
def test_urls_that_mean_the_same_are_the_same(text: str, url: str):
    assert parse(text).url == url


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("", "url"),
        ("a:8080", "url"),
        ("ftp://a", "url"),
        ("file:///etc/passwd", "url"),
        ("http://", "url"),
        ("http://:80", "url"),
        ("http://a:99999", "url"),
        ("http://a:x", "url"),
        ("http://a b", "url"),
        ("http://a\r\nb", "url"),
        ("http://a#x", "url"),
        ("http://user:secret@a", "url"),
        ("http://user@a", "url"),
        ("http://a?nonsense=1", "url"),
        ("http://a?concurrency=0", "concurrency"),
        ("http://a?concurrency=-1", "concurrency"),
        (f"http://a?concurrency={MAX_CONCURRENCY + 1}", "concurrency"),
        ("http://a?concurrency=many", "concurrency"),
        ("http://a?concurrency=1.5", "concurrency"),
        ("http://a?concurrency=", "concurrency"),
        ("http://a?concurrency=" + "9" * 5000, "concurrency"),
        ("http://a?concurrency=1&concurrency=2", "concurrency"),
        ("http://a?weight=0", "weight"),
        ("http://a?weight=-1", "weight"),
        ("http://a?weight=nan", "weight"),
        ("http://a?weight=inf", "weight"),
        (f"http://a?weight={MAX_WEIGHT * 2}", "weight"),
        ("http://a?weight=x", "weight"),
        ("http://a?model=", "model"),
        ("http://a?api_key_env=a-b", "api_key_env"),
        ("http://a?api_key_env=1A", "api_key_env"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(text: str, param: str):
    with pytest.raises(Refused) as refused:
        parse(text)

    assert refused.value.param == param
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://a/" + "x" * 2048, "2057 characters; at most 2048"),
        ("http://a\tb", "a space or a control character"),
        ("http://a\0", "a space or a control character"),
        ("http://a\u2028", "a space or a control character"),
        ("http://[::1", "no http or https URL"),
        ("http://a:0", "port must be a number from 1 to 65535"),
        ("http://a:65536", "port must be a number from 1 to 65535"),
        ("http://a:-1", "port must be a number from 1 to 65535"),
        ("http://user@a:x", "password"),
        ("http://a/ü", "path must be ASCII"),
        ("http://" + "a" * 64, "is too long"),
        ("http://" + "ü" * 64, "IDNA"),
        ("http://" + ".".join(["a" * 60] * 5), "is too long"),
        ("http://" + "ü" * 2000, "IDNA"),
        ("http://a..b", "no name of a host"),
        ("http://ü..b", "IDNA"),
        ("http://.", "no name of a host"),
        ("http://-a", "no name of a host"),
        ("http://a%00b", "no name of a host"),
        ("http://a,b", "no name of a host"),
        ("http://1.2.3.999", "no IP address"),
        ("http://127.1", "no IP address"),
        ("http://0x7f.1", "no IP address"),
        ("http://2130706433", "no IP address"),
        ("http://[::g]", "no"),
    ],
)
def test_a_wrong_url_is_refused_with_its_fault(text: str, words: str):
    with pytest.raises(Refused, match=words) as refused:
        UpstreamSpec(url=text)

    assert refused.value.param == "url"
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["http://user:secret@a", "http://user:secret@a:x", "ftp://user:secret@a"])
def test_no_message_tells_a_password(text: str):
    with pytest.raises(Refused) as refused:
        parse(text)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf])
def test_a_weight_from_elsewhere_is_checked_as_well(weight: float):
    with pytest.raises(Refused):
        UpstreamSpec(url="http://a", weight=weight)
