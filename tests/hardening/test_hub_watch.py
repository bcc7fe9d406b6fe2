"""The watch over the hub, which fails tests: it finds who holds it, in this process and in a server, and says where."""

from __future__ import annotations

import hashlib
import signal
import time
from pathlib import Path

import flask
import pytest

from tests.serve.server import GUNICORN, Servers
from tests.support import hub_watch
from tests.support.waiting import eventually

BUSY_APP = """
import time

from flask import Flask

application = Flask("busy")


@application.get("/health")
def health():
    return {"status": "ok"}


@application.get("/turns")
def take_turns():
    # Keeps the hub's own greenlet busy for longer, in pieces between which it polls.
    import gevent.event

    over, began = gevent.event.Event(), time.thread_time()

    def work():
        piece = time.thread_time()
        while time.thread_time() - piece < 0.01:
            pass
        if time.thread_time() - began < 0.3:
            timer.start(work)
        else:
            over.set()

    timer = gevent.get_hub().loop.timer(0.0)
    timer.start(work)
    over.wait()
    return "done"


@application.get("/busy")
def be_busy():
    began = time.thread_time()
    while time.thread_time() - began < 0.25:
        pass
    return "done"
"""


def use_the_processor(seconds: float) -> str:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
    return "done"


@pytest.mark.parametrize(("seconds", "is_found"), [(0.25, True), (0.03, False)])
def test_a_request_that_holds_the_hub_is_found(seconds: float, is_found: bool) -> None:
    app = flask.Flask("busy")
    app.get("/")(lambda: use_the_processor(seconds))

    assert app.test_client().get("/").text == "done"

    found = hub_watch.findings()
    assert bool(found) is is_found
    assert all("in use_the_processor" in finding for finding in found)


def test_one_call_of_c_that_holds_the_hub_is_found() -> None:
    app = flask.Flask("derives")
    app.get("/")(lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000).hex())

    assert app.test_client().get("/").status_code == 200

    assert hub_watch.findings()


def test_a_jump_of_the_clock_of_processor_time_is_not_found() -> None:
    """All ticks of such a jump come as one, as they do when the signal is held up."""

    def jump() -> str:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
        try:
            return use_the_processor(0.25)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})

    app = flask.Flask("jumps")
    app.get("/")(jump)

    assert app.test_client().get("/").text == "done"

    assert hub_watch.findings() == []


def test_a_request_that_waits_does_not_hold_the_hub() -> None:
    app = flask.Flask("waits")
    app.get("/")(lambda: time.sleep(0.25) or "done")

    assert app.test_client().get("/").text == "done"

    assert hub_watch.findings() == []


def test_work_of_the_tests_themselves_is_no_request() -> None:
    use_the_processor(0.25)

    assert hub_watch.findings() == []


def test_a_server_that_is_held_is_found_and_named(start: Servers, tmp_path: Path) -> None:
    (tmp_path / "busy_app.py").write_text(BUSY_APP)
    server = start.start(*GUNICORN, "--chdir", str(tmp_path), "-b", "127.0.0.1:0", "busy_app")

    assert server.get("/turns") == (200, "done")
    assert server.get("/health")[0] == 200
    assert hub_watch.findings() == []
    assert server.get("/busy") == (200, "done")

    found = eventually(lambda: "".join(hub_watch.findings()), what="a finding")
    assert "the hub was held for" in found
    assert "in be_busy" in found
