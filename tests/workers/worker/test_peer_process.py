"""A process that somebody else has started, seen through its connection."""

from __future__ import annotations

import _socket

import gevent
import pytest

from corosrv.workers.manager.joined import PeerProcess
from tests.workers.worker.predicting import TIMEOUT

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]


@pytest.fixture
def ends():
    ours, theirs = _socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_it_runs_as_long_as_its_connection_and_reading_waits_for_nothing(ends):
    ours, theirs = ends
    process = PeerProcess(ours, 42)

    theirs.send(b"unread")

    assert (process.pid, process.wait(0), process.exit) == (42, False, None)
    assert ours.recv(10) == b"unread"


def test_it_has_ended_when_the_other_side_has_closed(ends):
    ours, theirs = ends
    process = PeerProcess(ours, 42)
    theirs.close()

    assert process.wait(TIMEOUT)
    assert str(process.exit) == "exit code unknown"


def test_a_kill_ends_the_connection_and_wakes_whoever_waits(ends):
    ours, theirs = ends
    process = PeerProcess(ours, 42)
    waiting = gevent.spawn(process.wait, TIMEOUT)
    gevent.idle()

    process.kill()
    process.terminate()

    assert waiting.get(timeout=TIMEOUT)
    assert theirs.recv(1) == b""


def test_a_connection_that_this_side_has_closed_has_ended(ends):
    ours, _ = ends
    process = PeerProcess(ours, 42)
    ours.close()

    assert process.wait(TIMEOUT)
