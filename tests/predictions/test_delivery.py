"""One POST, against a real receiver."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate

import gevent
import pytest

from corosrv.predictions import delivery
from corosrv.predictions.delivery import MAX_REDIRECTS, Outcome, Poster, is_http_url, retry_after
from tests.support.receiver import Receiver, closed_url, receiving


@pytest.fixture
def poster() -> Iterator[Poster]:
    poster = Poster("token")
    yield poster
    poster.close()


def test_a_post_says_who_it_is_and_carries_what_it_was_given(poster: Poster, receiver: Receiver):
    outcome = poster.post(receiver.url, [b'{"a":1}'], {"traceparent": "00-1"})

    assert outcome.is_delivered
    (got,) = receiver.got
    assert (got.method, got.path, got.body) == ("POST", "/hook", {"a": 1})
    assert got.headers["content-type"] == "application/json"
    assert got.headers["user-agent"].startswith("corosrv/")
    assert got.headers["authorization"] == "Bearer token"
    assert got.headers["traceparent"] == "00-1"


def test_without_a_token_there_is_no_authorization(receiver: Receiver):
    poster = Poster()
    poster.post(receiver.url, [b"{}"], {})
    poster.close()

    assert "authorization" not in receiver.got[0].headers


@pytest.mark.parametrize("status", [307, 308])
def test_these_redirects_keep_method_and_body(poster: Poster, receiver: Receiver, status: int):
    receiver.say(status, Location="/other")

    outcome = poster.post(receiver.url, [b'{"a":1}'], {})

    assert outcome.is_delivered
    assert [(got.method, got.path, got.body) for got in receiver.got] == [
        ("POST", "/hook", {"a": 1}),
        ("POST", "/other", {"a": 1}),
    ]
    assert receiver.got[1].headers["authorization"] == "Bearer token"


@pytest.mark.parametrize("status", [301, 302, 303])
def test_other_redirects_are_failures(poster: Poster, receiver: Receiver, status: int):
    receiver.say(status, Location="/other")

    outcome = poster.post(receiver.url, [b"{}"], {})

    assert not outcome.is_delivered
    assert not outcome.is_worth_repeating
    assert len(receiver.got) == 1


def test_the_token_is_not_for_whomever_a_receiver_points_to(poster: Poster, receiver: Receiver):
    with receiving() as other:
        receiver.say(307, Location=other.url)

        assert poster.post(receiver.url, [b"{}"], {}).is_delivered

        assert "authorization" not in other.got[0].headers


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://x/", "http://:80/"])
def test_a_redirect_leads_to_http_or_nowhere(poster: Poster, receiver: Receiver, location: str):
    receiver.say(307, Location=location)

    assert poster.post(receiver.url, [b"{}"], {}).status == 307


def test_redirects_end(poster: Poster, receiver: Receiver):
    for _ in range(20):
        receiver.say(307, Location="/again")

    assert poster.post(receiver.url, [b"{}"], {}).status == 307
    assert len(receiver.got) == MAX_REDIRECTS + 1


def test_nobody_at_the_other_end_is_worth_another_try(poster: Poster):
    outcome = poster.post(closed_url(), [b"{}"], {})

    assert outcome.status is None
    assert outcome.is_worth_repeating
    assert outcome.reason


@pytest.mark.parametrize("url", ["http://a..b/", "http://" + "a" * 300 + "/", "http://[::1/"])
def test_an_address_that_nobody_can_have_is_a_failure(poster: Poster, url: str):
    assert not poster.post(url, [b"{}"], {}).is_delivered


def test_a_receiver_that_does_not_answer_is_given_up_in_time(poster: Poster, receiver: Receiver):
    receiver.hold()
    began = time.monotonic()

    outcome = poster.post(receiver.url, [b"{}"], {}, seconds=0.1)

    assert outcome.status is None
    assert outcome.is_worth_repeating
    assert time.monotonic() - began < 5


def test_others_run_while_a_post_waits(poster: Poster, receiver: Receiver):
    receiver.hold()
    posting = gevent.spawn(poster.post, receiver.url, [b"{}"], {})

    ran = [gevent.sleep(0.001) for _ in range(10)]
    assert not posting.ready()
    receiver.let_go()

    assert len(ran) == 10
    assert posting.get(timeout=5).is_delivered


PATCHED = """
from gevent import monkey; monkey.patch_all()
import sys, threading, gevent
from corosrv.predictions.delivery import Poster
poster = Poster()
before = threading.active_count()
posts = [gevent.spawn(poster.post, sys.argv[1], [b"{}"], {}, 5) for _ in range(50)]
held = poster.post(sys.argv[2], [b"{}"], {}, 0.2)
native = len(__import__("os").listdir("/proc/self/task"))
print(sum(post.get(timeout=10).is_delivered for post in posts), held.status, native < 20)
poster.close()
"""


def test_in_a_patched_process_many_posts_need_no_threads(receiver: Receiver):
    with receiving() as held:
        held.hold()
        command = [sys.executable, "-c", PATCHED, receiver.url, held.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert done.stdout.split() == ["50", "None", "True"], done.stderr


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, None])
def test_what_may_pass_is_worth_repeating(status: int | None):
    assert Outcome(status).is_worth_repeating


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 410, 501])
def test_what_stays_is_not(status: int):
    assert not Outcome(status).is_worth_repeating


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("7", 7),
        ("9999", 300),
        ("-1", 0),
        ("soon", 0),
        (formatdate(1060, usegmt=True), 60),
        (formatdate(900), 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float):
    assert retry_after(text, now=1000.0) == seconds


def test_urls_may_have_ports_and_addresses():
    assert is_http_url("http://[::1]:8080/x?y#z")
    assert is_http_url("HTTPS://example.test")


def test_a_receiver_is_posted_to_again_and_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery, "CONNECTIONS", 1)
    poster = Poster()

    outcomes = [poster.post(receiver.url, [b"{}"], {}, seconds=2) for _ in range(3)]
    poster.close()

    assert all(outcome.is_delivered for outcome in outcomes)
