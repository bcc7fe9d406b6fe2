"""Which peer gets a request, by what the peers have announced and when."""

from __future__ import annotations

from collections import Counter

import pytest

from corosrv.gateway.delegation.announcement import Announcement
from corosrv.gateway.delegation.roster import MAX_REFUSED, STALE_AFTER, PeerRecord, PeerState, Roster
from corosrv.gateway.delegation.targets import ModelOfDialect
from corosrv.gateway.delegation.trip import Trip, parse_trip

SMALL = ModelOfDialect("openai", "small")
OWN = "a"


def announcement(name: str, *models: str) -> Announcement:
    return Announcement(name, ["openai"], list(models or ("small",)))


def roster_of(*names: str, now: float = 0.0) -> Roster:
    """Returns a roster of peers that all serve the small model."""
    roster = Roster(OWN, [PeerRecord(f"http://{name}") for name in names])
    for peer, name in zip(roster.peers, names, strict=True):
        roster.hear(peer, announcement(name), now)
    return roster


def chosen(roster: Roster, *visited: str, now: float = 0.0, key: str = "") -> str:
    peer = roster.choose(SMALL, visited, now, key)
    return "" if peer is None else peer.id


def test_a_peer_gets_nothing_before_it_has_announced_anything():
    roster = Roster(OWN, [PeerRecord("http://b", "b")])

    assert roster.peers[0].state(0.0) is PeerState.ASKING
    assert chosen(roster) == ""


def test_a_peer_gets_what_it_announces_and_nothing_else():
    roster = roster_of("b")

    assert chosen(roster) == "b"
    assert roster.choose(ModelOfDialect("openai", "large"), (), 0.0) is None


def test_a_later_announcement_replaces_the_earlier():
    roster = roster_of("b")
    roster.hear(roster.peers[0], announcement("b", "large"), 1.0)

    assert chosen(roster, now=1.0) == ""


def test_a_peer_is_stale_after_fifteen_seconds_of_silence():
    roster = roster_of("b", now=100.0)
    peer = roster.peers[0]
    peer.note_failure("it did not answer")

    assert STALE_AFTER == 15.0
    assert peer.state(115.0) is PeerState.READY
    assert peer.state(115.1) is PeerState.STALE
    assert chosen(roster, now=115.1) == ""


def test_a_stale_peer_is_ready_again_with_its_next_announcement():
    roster = roster_of("b")
    roster.hear(roster.peers[0], announcement("b"), 50.0)

    assert chosen(roster, now=50.0) == "b"


def test_a_peer_without_a_connection_gets_nothing_until_it_announces_again():
    roster = roster_of("b")
    roster.peers[0].note_lost("refused")

    assert roster.peers[0].state(0.0) is PeerState.DOWN
    assert chosen(roster) == ""

    roster.hear(roster.peers[0], announcement("b"), 1.0)
    assert chosen(roster, now=1.0) == "b"


def test_a_peer_that_has_seen_the_request_does_not_get_it():
    assert chosen(roster_of("b", "c"), "b") == "c"
    assert chosen(roster_of("b", "c"), "b", "c") == ""


def test_the_peer_with_the_fewest_requests_is_chosen_and_alike_ones_take_turns():
    roster = roster_of("b", "c", "d")
    roster.peers[0].in_flight = 1

    assert Counter(chosen(roster) for _ in range(10)) == {"c": 5, "d": 5}


def test_a_repeated_request_goes_to_the_same_peer():
    roster = roster_of("b", "c", "d")

    by_key = {key: {chosen(roster, key=key) for _ in range(5)} for key in map(str, range(20))}

    assert all(len(peers) == 1 for peers in by_key.values())
    assert len(set.union(*by_key.values())) > 1


def test_a_peer_that_refused_a_model_is_asked_last_until_it_announces_again():
    roster = roster_of("b", "c")
    roster.peers[0].note_refused(SMALL)

    assert [chosen(roster) for _ in range(3)] == ["c", "c", "c"]
    assert chosen(roster, "c") == "b"

    roster.hear(roster.peers[0], announcement("b"), 1.0)
    assert {chosen(roster, now=1.0), chosen(roster, now=1.0)} == {"b", "c"}


def test_no_more_refusals_are_remembered_than_the_limit():
    peer = roster_of("b").peers[0]
    for number in range(MAX_REFUSED + 10):
        peer.note_refused(ModelOfDialect("openai", f"m{number}"))

    assert not peer.has_refused(ModelOfDialect("openai", "m9"))
    assert peer.has_refused(ModelOfDialect("openai", "m10"))


def test_this_server_under_another_name_is_refused():
    roster = roster_of("b", OWN)

    assert [peer.state(0.0) for peer in roster.peers] == [PeerState.READY, PeerState.REFUSED]
    assert "this server itself" in roster.peers[1].last_answer
    assert chosen(roster, "b") == ""


def test_a_second_peer_of_the_same_id_is_refused():
    roster = roster_of("b", "b")

    assert [peer.state(0.0) for peer in roster.peers] == [PeerState.READY, PeerState.REFUSED]
    assert "http://b" in roster.peers[1].last_answer


def test_an_id_may_move_once_its_first_address_is_stale():
    roster = roster_of("b", "b")
    roster.hear(roster.peers[1], announcement("b"), STALE_AFTER + 1)

    assert roster.peers[1].state(STALE_AFTER + 1) is PeerState.READY


def test_a_peer_that_is_not_who_the_operator_says_is_refused():
    roster = Roster(OWN, [PeerRecord("http://b", "b")])
    roster.hear(roster.peers[0], announcement("x"), 0.0)

    assert roster.peers[0].state(0.0) is PeerState.REFUSED
    assert "it says that it is x, and not b" in roster.peers[0].last_answer


def test_a_refused_peer_that_becomes_another_is_ready():
    roster = roster_of(OWN)
    roster.hear(roster.peers[0], announcement("b"), 1.0)

    assert chosen(roster, now=1.0) == "b"


@pytest.mark.parametrize("n_replicas", [2, 3, 5, 9])
def test_no_replica_is_visited_twice_though_all_announce_what_none_serves(n_replicas: int):
    """Walks a request as DelegatedCall does, with the headers that the replicas send each other."""
    names = [f"r{number}" for number in range(n_replicas)]
    rosters = {}
    for name in names:
        others = [other for other in names if other != name]
        rosters[name] = Roster(name, [PeerRecord(f"http://{other}") for other in others])
        for peer, other in zip(rosters[name].peers, others, strict=True):
            rosters[name].hear(peer, announcement(other), 0.0)
    visits: Counter[str] = Counter()

    def arrive(name: str, incoming: Trip) -> tuple[str, ...]:
        incoming.check(name)
        visits[name] += 1
        trip = incoming.visit([name])
        for _ in range(2):
            peer = None if incoming.is_at_limit else rosters[name].choose(SMALL, trip.visited, 0.0)
            if peer is None:
                break
            headers = dict(trip.onward())
            trip = trip.visit(arrive(peer.id, parse_trip(headers["X-Corosrv-Hops"], headers["X-Corosrv-Path"])))
        return trip.visited

    arrive(names[0], Trip())

    assert max(visits.values()) == 1
    assert len(visits) == min(n_replicas, 7)  # two peers, and two more of each
