"""Which fronts of a Redis become peers, and when they are none any more. Nobody is asked: the asker is not started."""

from __future__ import annotations

import pytest

from corosrv.gateway.delegation import peer
from corosrv.gateway.delegation.peer import GRACE, FoundPeers, Peer, PeerAsker, PeerNotice, PeerSeal

TOKEN = "the-token-of-all"
OWN, B, C = "http://10.0.0.1:8080", "http://10.0.0.2:8080", "http://10.0.0.3:8080"
SEAL = PeerSeal(TOKEN, "default")


class Finding:
    """A front that looks for peers, and its clock."""

    def __init__(self, *named: str) -> None:
        peers = tuple(map(Peer, named))
        asker = PeerAsker("a", peers, TOKEN)
        self.roster = asker.roster
        self.now = 0.0
        self.found = FoundPeers(asker, SEAL, OWN, lambda: self.now)

    @property
    def urls(self) -> list[str]:
        return [record.url for record in self.roster.peers]


def test_a_front_that_announces_itself_becomes_a_peer_and_one_that_leaves_is_none():
    finding = Finding()

    finding.found.see([SEAL.notice("b", B), SEAL.notice("c", C)])
    assert finding.urls == [B, C]
    assert all(record.is_found for record in finding.roster.peers)

    finding.found.see([PeerNotice("b"), SEAL.notice("c", C)])
    assert finding.urls == [C]


def test_a_front_that_is_missing_stays_a_peer_for_a_while_for_redis_may_have_lost_it():
    finding = Finding()
    finding.found.see([SEAL.notice("b", B)])
    (record,) = finding.roster.peers

    finding.now += GRACE
    finding.found.see([])
    assert finding.roster.peers == (record,)
    finding.found.see([SEAL.notice("b", B)])
    finding.now += GRACE
    finding.found.see([])
    assert finding.roster.peers == (record,)

    finding.now += 0.1
    finding.found.see([])
    assert finding.urls == []


def test_processes_of_one_server_are_one_peer_until_the_last_leaves():
    finding = Finding()

    finding.found.see([SEAL.notice("b1", B), SEAL.notice("b2", B)])
    assert finding.urls == [B]
    finding.found.see([PeerNotice("b1"), SEAL.notice("b2", B)])
    assert finding.urls == [B]
    finding.found.see([PeerNotice("b1"), PeerNotice("b2")])
    assert finding.urls == []


def test_this_server_is_no_peer_and_one_that_is_named_stays_one():
    finding = Finding(B)

    finding.found.see([SEAL.notice("sibling", OWN), SEAL.notice("b", B)])
    finding.found.see([PeerNotice("b")])

    assert finding.urls == [B]
    assert not finding.roster.peers[0].is_found


@pytest.mark.parametrize(
    "notice",
    [
        PeerNotice("b", B),
        PeerNotice("b", B, TOKEN),
        PeerNotice("b", B, "\ud800"),
        PeerSeal("another-token", "default").notice("b", B),
        PeerSeal(TOKEN, "another").notice("b", B),
        PeerNotice("b", B, SEAL.notice("c", B).proof),
        PeerNotice("b", B, SEAL.notice("b", C).proof),
        SEAL.notice("b", "file:///etc/passwd"),
        SEAL.notice("b", "http://user:word@10.0.0.2"),
    ],
    ids=["no proof", "the token itself", "no text", "token", "namespace", "front", "url", "no http", "a password"],
)
def test_what_is_announced_without_proof_is_ignored_and_logged_once(notice: PeerNotice, monkeypatch):
    finding, told = Finding(), []
    monkeypatch.setattr(peer._ignored, "count", told.append)

    for _ in range(3):
        finding.found.see([notice, SEAL.notice("c", C)])

    assert finding.urls == [C]
    assert len(told) == 1


def test_a_proof_has_nothing_of_the_token_in_it():
    notice = SEAL.notice("b", B)

    assert TOKEN not in notice.proof
    assert notice.proof == PeerSeal(TOKEN, "default").notice("b", B).proof
