"""When peers are asked what they serve: their answers are a test's, and time stands still."""

from __future__ import annotations

from types import SimpleNamespace

import gevent
import pytest

from corosrv.base.errors import CorosrvError, WorkerLost
from corosrv.fleet.upstreams.failures import UpstreamDown
from corosrv.gateway.delegation import peer as asker_module
from corosrv.gateway.delegation.announcement import Announcement
from corosrv.gateway.delegation.peer import PeerAsker
from corosrv.gateway.delegation.roster import STALE_AFTER, PeerRecord, PeerState
from tests.support.waiting import wait_until

ANNOUNCED = Announcement("b", ["openai"], ["small"])
LIMIT = 30.0


class AskedPeer:
    """Answers as a test says, and keeps what ends its calls."""

    def __init__(self, answer: Announcement | Exception) -> None:
        self.record = PeerRecord("http://b")
        self.answer = answer
        self.aborted_by: list[CorosrvError] = []
        self.calls: dict[object, None] = {}
        self.is_closed = False

    def ask(self, token: str) -> Announcement:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def abort(self, error: CorosrvError) -> None:
        self.aborted_by.append(error)

    def close(self) -> None:
        self.is_closed = True


class Pauses:
    """Keeps how long the asker would sleep, and lets it go on when a test says so."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.over = gevent.event.Event()

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.over.wait(LIMIT)
        self.over.clear()

    def pause(self, number: int) -> float:
        """Waits until a peer was asked so many times, and returns the pause after that."""
        return wait_until(lambda: len(self.seconds) >= number, f"question {number}") and self.seconds[number - 1]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    pauses = Pauses()
    # The asker's own name for gevent: greenlets that other tests have left behind sleep as they do.
    monkeypatch.setattr(asker_module, "gevent", SimpleNamespace(**{**vars(gevent), "sleep": pauses.sleep}))
    return pauses


def asking(peer: AskedPeer) -> PeerAsker:
    asker = PeerAsker("a", (peer,), "token")  # type: ignore[arg-type]
    asker.start()
    return asker


def test_a_peer_that_is_ready_is_asked_three_times_before_it_would_be_stale(pauses: Pauses):
    peer = AskedPeer(ANNOUNCED)
    asker = asking(peer)

    assert 4.0 < pauses.pause(1) <= STALE_AFTER / 3
    asker.close()


@pytest.mark.parametrize("answer", [UpstreamDown("no connection"), CorosrvError("no announcement")])
def test_a_peer_that_is_not_known_yet_is_asked_more_often(pauses: Pauses, answer: Exception):
    asker = asking(AskedPeer(answer))

    assert pauses.pause(1) <= 1.0
    asker.close()


def test_a_bug_does_not_end_the_asking(pauses: Pauses):
    asker = asking(AskedPeer(KeyError("a bug")))
    pauses.pause(1)

    pauses.over.set()

    pauses.pause(2)
    asker.close()


def test_calls_of_a_peer_that_has_fallen_silent_are_lost(pauses: Pauses):
    peer = AskedPeer(ANNOUNCED)
    asker = asking(peer)
    pauses.pause(1)
    assert not peer.aborted_by

    peer.record.heard_at -= STALE_AFTER + 1
    peer.answer = CorosrvError("it did not answer")
    pauses.over.set()
    seconds = pauses.pause(2)

    assert peer.record.state(peer.record.heard_at + STALE_AFTER + 1) is PeerState.STALE
    assert isinstance(peer.aborted_by[0], WorkerLost)
    assert seconds <= 1.0
    asker.close()


def test_a_peer_that_leaves_is_asked_while_it_has_calls_and_closed_then(pauses: Pauses):
    peer, late = AskedPeer(ANNOUNCED), AskedPeer(ANNOUNCED)
    asker = asking(peer)
    asker.add(late)  # type: ignore[arg-type]
    pauses.pause(2)
    late.calls["one"] = None

    asker.remove(late)  # type: ignore[arg-type]
    pauses.over.set()
    pauses.pause(4)
    assert asker.peers.keys() == {peer.record, late.record}
    assert not late.is_closed

    late.calls.clear()
    pauses.over.set()
    wait_until(lambda: late.is_closed, "it is closed")
    assert asker.peers.keys() == {peer.record}
    assert not peer.is_closed
    asker.close()
