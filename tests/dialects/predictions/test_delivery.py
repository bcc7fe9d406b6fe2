"""One POST, against a real receiver."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from urllib.parse import urlsplit

import gevent
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from corosrv.base.outgoing import MAX_REDIRECTS, WebhookSigner
from corosrv.dialects.predictions import webhooks
from corosrv.dialects.predictions.webhooks import Outcome, Poster, retry_after
from tests.support.receiver import Receiver, closed_url, receiving


@pytest.fixture
def poster() -> Iterator[Poster]:
    poster = Poster("token")
    yield poster
    poster.close()


def test_a_post_says_who_it_is_and_carries_what_it_was_given(poster: Poster, receiver: Receiver):
    outcome = poster.post(receiver.url, [b'{"a":1}'], {"traceparent": "00-1"}, to_loopback=True)

    assert outcome.is_delivered
    (got,) = receiver.got
    assert (got.method, got.path, got.body) == ("POST", "/hook", {"a": 1})
    assert got.headers["content-type"] == "application/json"
    assert got.headers["user-agent"].startswith("corosrv/")
    assert got.headers["authorization"] == "Bearer token"
    assert got.headers["traceparent"] == "00-1"


def test_without_a_token_there_is_no_authorization(receiver: Receiver):
    poster = Poster()
    poster.post(receiver.url, [b"{}"], {}, to_loopback=True)
    poster.close()

    assert "authorization" not in receiver.got[0].headers


@pytest.mark.parametrize("status", [307, 308])
def test_these_redirects_keep_method_and_body(poster: Poster, receiver: Receiver, status: int):
    receiver.say(status, Location="/other")

    outcome = poster.post(receiver.url, [b'{"a":1}'], {}, to_loopback=True)

    assert outcome.is_delivered
    assert [(got.method, got.path, got.body) for got in receiver.got] == [
        ("POST", "/hook", {"a": 1}),
        ("POST", "/other", {"a": 1}),
    ]
    assert receiver.got[1].headers["authorization"] == "Bearer token"


@pytest.mark.parametrize("status", [301, 302, 303])
def test_other_redirects_are_failures(poster: Poster, receiver: Receiver, status: int):
    receiver.say(status, Location="/other")

    outcome = poster.post(receiver.url, [b"{}"], {}, to_loopback=True)

    assert not outcome.is_delivered
    assert not outcome.is_worth_repeating
    assert len(receiver.got) == 1


@pytest.mark.parametrize("where", ["http://127.0.0.1:{port}/", "http://localhost:{own}/", "http://169.254.169.254/"])
def test_a_redirect_elsewhere_is_not_followed(poster: Poster, receiver: Receiver, where: str):
    with receiving() as other:
        location = where.format(port=urlsplit(other.url).port, own=urlsplit(receiver.url).port)
        receiver.say(307, Location=location)

        outcome = poster.post(receiver.url, [b"{}"], {}, to_loopback=True)

        assert (outcome.status, outcome.is_delivered, other.got) == (307, False, [])
        assert "redirects to another host" in outcome.reason
        assert not outcome.is_worth_repeating


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "127.1", "2130706433", "[::ffff:127.0.0.1]"])
def test_nothing_is_posted_to_this_machine_unless_that_is_allowed(poster: Poster, receiver: Receiver, host: str):
    url = receiver.url.replace("127.0.0.1", host)

    refused = poster.post(url, [b"{}"], {})

    assert (refused.is_delivered, refused.is_worth_repeating, receiver.got) == (False, False, [])
    assert "is this machine" in refused.reason
    assert poster.post(url, [b"{}"], {}, to_loopback=True).is_delivered
    (got,) = receiver.got
    assert got.headers["host"] == urlsplit(url).netloc


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://x/", "http://:80/"])
def test_a_redirect_leads_to_http_or_nowhere(poster: Poster, receiver: Receiver, location: str):
    receiver.say(307, Location=location)

    assert poster.post(receiver.url, [b"{}"], {}, to_loopback=True).status == 307


def test_redirects_end(poster: Poster, receiver: Receiver):
    for _ in range(20):
        receiver.say(307, Location="/again")

    assert poster.post(receiver.url, [b"{}"], {}, to_loopback=True).status == 307
    assert len(receiver.got) == MAX_REDIRECTS + 1


def test_nobody_at_the_other_end_is_worth_another_try(poster: Poster):
    outcome = poster.post(closed_url(), [b"{}"], {}, to_loopback=True)

    assert outcome.status is None
    assert outcome.is_worth_repeating
    assert outcome.reason


@pytest.mark.parametrize("url", ["http://a..b/", "http://" + "a" * 300 + "/", "http://[::1/"])
def test_an_address_that_nobody_can_have_is_a_failure(poster: Poster, url: str):
    assert not poster.post(url, [b"{}"], {}, to_loopback=True).is_delivered


def test_a_receiver_that_does_not_answer_is_given_up_in_time(poster: Poster, receiver: Receiver):
    receiver.hold()
    began = time.monotonic()

    outcome = poster.post(receiver.url, [b"{}"], {}, to_loopback=True, seconds=0.1)

    assert outcome.status is None
    assert outcome.is_worth_repeating
    assert time.monotonic() - began < 5


def test_others_run_while_a_post_waits(poster: Poster, receiver: Receiver):
    receiver.hold()
    posting = gevent.spawn(poster.post, receiver.url, [b"{}"], {}, to_loopback=True)

    ran = [gevent.sleep(0.001) for _ in range(10)]
    assert not posting.ready()
    receiver.let_go()

    assert len(ran) == 10
    assert posting.get(timeout=5).is_delivered


PATCHED = """
from gevent import monkey; monkey.patch_all()
import sys, threading, gevent
from corosrv.dialects.predictions.webhooks import Poster
poster = Poster()
before = threading.active_count()
posts = [gevent.spawn(poster.post, sys.argv[1], [b"{}"], {}, to_loopback=True, seconds=20) for _ in range(50)]
held = poster.post(sys.argv[2], [b"{}"], {}, to_loopback=True, seconds=0.2)
native = len(__import__("os").listdir("/proc/self/task"))
print(sum(post.get(timeout=30).is_delivered for post in posts), held.status, native < 20)
poster.close()
"""


def test_in_a_patched_process_many_posts_need_no_threads(receiver: Receiver):
    with receiving() as held:
        held.hold()
        command = [sys.executable, "-c", PATCHED, receiver.url, held.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

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


def test_a_receiver_is_posted_to_again_and_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(webhooks, "CONNECTIONS", 1)
    poster = Poster()

    outcomes = [poster.post(receiver.url, [b"{}"], {}, to_loopback=True, seconds=20) for _ in range(3)]
    poster.close()

    assert all(outcome.is_delivered for outcome in outcomes)


KEYS = [f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2)]


@pytest.mark.parametrize("body", [[b'{"a"', b":1}"], [b'"', b"x" * (2 << 20), b'"']], ids=["short", "long"])
def test_a_signed_post_is_what_standard_webhooks_verifies_with_each_secret(receiver: Receiver, body: list[bytes]):
    poster = Poster(signer=WebhookSigner(", ".join(KEYS)))
    poster.post(receiver.url, body, {}, id="msg_1", to_loopback=True)
    poster.close()

    (got,) = receiver.got
    assert got.headers["webhook-id"] == "msg_1"
    for key in KEYS:
        assert Webhook(key).verify(got.raw, got.headers) == got.body
    with pytest.raises(WebhookVerificationError):
        Webhook(f"whsec_{base64.b64encode(bytes(32)).decode()}").verify(got.raw, got.headers)
    first = {**got.headers, "webhook-signature": got.headers["webhook-signature"].split()[0]}
    assert Webhook(KEYS[0]).verify(got.raw, first) == got.body


def test_without_a_secret_nothing_is_signed(poster: Poster, receiver: Receiver):
    poster.post(receiver.url, [b"{}"], {}, id="msg_1", to_loopback=True)

    assert not [name for name in receiver.got[0].headers if name.startswith("webhook-")]
