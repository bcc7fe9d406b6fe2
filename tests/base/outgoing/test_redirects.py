"""The way of a request along redirects."""

from __future__ import annotations

import pytest

from corosrv.base.errors import RedirectRefused
from corosrv.base.outgoing import ALL, KEEPING_METHOD, MAX_REDIRECTS, Redirects


def test_an_answer_without_a_redirect_is_final():
    redirects = Redirects("http://a/x", ALL)

    assert not redirects.follow(200, "http://b/")
    assert not redirects.follow(307, None)
    assert not redirects.follow(None, None)
    assert not Redirects("http://a/", KEEPING_METHOD).follow(302, "http://b/")


def test_relative_targets_stand_below_the_last_one():
    redirects = Redirects("http://a/x/y", ALL)

    assert redirects.follow(302, "z")
    assert redirects.url == "http://a/x/z"
    assert redirects.follow(307, "//b/q")
    assert redirects.follow(307, "r")

    assert redirects.url == "http://b/r"


def test_redirects_end():
    redirects = Redirects("http://a/", ALL)
    for _ in range(MAX_REDIRECTS):
        assert redirects.follow(301, "/again")

    with pytest.raises(RedirectRefused, match="more than 5 redirects"):
        redirects.follow(301, "/again")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://x/", "http://:80/", "http://a b/"])
def test_redirects_lead_to_http_or_nowhere(target: str):
    with pytest.raises(RedirectRefused, match="something else than http"):
        Redirects("http://a/", ALL).follow(301, target)


@pytest.mark.parametrize("target", ["http://b/", "http://a:81/", "https://a:444/"])
def test_requests_that_stay_at_their_site_are_not_sent_elsewhere(target: str):
    redirects = Redirects("http://a/", ALL, leaves_site=False)

    with pytest.raises(RedirectRefused, match="another host or port"):
        redirects.follow(301, target)
    assert redirects.follow(301, "https://a/")
