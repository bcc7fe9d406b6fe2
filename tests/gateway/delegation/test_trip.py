"""The way of a request from replica to replica."""

from __future__ import annotations

import pytest

from corosrv.base.errors import LoopDetected, Refused
from corosrv.gateway.delegation.trip import HOP_LIMIT, MAX_VISITS, Trip, parse_trip


def test_a_client_s_request_has_visited_nobody():
    trip = parse_trip(None, None)

    assert trip == Trip(0, ())
    assert not trip.is_at_limit


def test_each_hop_is_written_and_read_again():
    here = Trip().visit(["a"])

    headers = dict(here.onward())
    there = parse_trip(headers["X-Corosrv-Hops"], headers["X-Corosrv-Path"])

    assert there == Trip(1, ("a",))


def test_a_request_goes_on_as_often_as_the_limit_says_and_no_more():
    trip = Trip()
    for name in "abcdefgh"[:HOP_LIMIT]:
        assert not trip.is_at_limit
        headers = dict(trip.visit([name]).onward())
        trip = parse_trip(headers["X-Corosrv-Hops"], headers["X-Corosrv-Path"])

    assert trip.is_at_limit


def test_a_request_that_was_here_is_refused_as_a_loop():
    with pytest.raises(LoopDetected, match="a > b") as caught:
        Trip(1, ("a", "b")).check("a")

    assert caught.value.status == 508


def test_a_request_that_was_elsewhere_is_let_in():
    Trip(1, ("a", "b")).check("c")


def test_a_replica_is_in_the_path_once():
    assert Trip(1, ("a",)).visit(["b", "a", "b"]).visited == ("a", "b")


def test_a_path_without_hops_counts_as_one():
    assert parse_trip(None, "a").n_hops == 1


def test_a_path_that_is_full_goes_nowhere():
    names = [f"r{number}" for number in range(MAX_VISITS)]

    assert parse_trip("1", ",".join(names)).is_at_limit


@pytest.mark.parametrize("hops", ["-1", "two", "1000", "1.0", "\u0661"])
def test_hops_that_are_no_number_are_refused_by_name(hops: str):
    with pytest.raises(Refused, match="X-Corosrv-Hops"):
        parse_trip(hops, "a")


@pytest.mark.parametrize("path", ["a b", "a,,b", "a" * 65, "a,", "\u00e9", ",".join(["r"] * (MAX_VISITS + 1))])
def test_a_path_of_other_than_ids_is_refused_by_name(path: str):
    with pytest.raises(Refused, match="X-Corosrv-Path"):
        parse_trip("1", path)
