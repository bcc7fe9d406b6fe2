"""Which requests are believed to come from a peer, and what is left of those that are not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from flask import Flask, g, request

from corosrv.base.errors import LoopDetected, Refused, Unauthorized
from corosrv.gateway.delegation.trip import ENVIRON_OF, DelegationStats, PeerGuard, Trip, current_trip, onward_headers

TOKEN = "the-token"
CALLER = "ab" * 32
SAID = {
    "X-Corosrv-Token": TOKEN,
    "X-Corosrv-Hops": "1",
    "X-Corosrv-Path": "b",
    "X-Corosrv-Caller": CALLER,
    "X-Corosrv-Elapsed-Ms": "2500",
}


@pytest.fixture
def stats() -> DelegationStats:
    return DelegationStats()


@pytest.fixture
def guard(stats: DelegationStats) -> PeerGuard:
    return PeerGuard("a", TOKEN, stats)


@pytest.fixture
def flask() -> Iterator[Flask]:
    return Flask("test")


def test_a_peer_is_believed_its_trip_its_caller_and_its_time(flask: Flask, guard: PeerGuard):
    before = time.monotonic()
    with flask.test_request_context(headers=SAID):
        caller = guard.admit(request.environ)

        assert caller == CALLER
        assert current_trip() == Trip(1, ("b",))
        assert before - 2.5 <= g.corosrv_began <= time.monotonic() - 2.5


def test_a_peer_whose_client_needed_no_key_has_a_caller_without_a_name(flask: Flask, guard: PeerGuard):
    with flask.test_request_context(headers={"X-Corosrv-Token": TOKEN}):
        assert guard.admit(request.environ) == ""


def test_nothing_is_believed_without_the_token(flask: Flask, guard: PeerGuard):
    with flask.test_request_context(headers={name: text for name, text in SAID.items() if "Token" not in name}):
        assert guard.admit(request.environ) is None
        assert current_trip() is None
        assert "corosrv_began" not in g
        assert not [field for field in ENVIRON_OF.values() if field in request.environ]


@pytest.mark.parametrize("token", ["", "the-token2", "THE-TOKEN", "\u00fc"])
def test_a_wrong_token_is_refused_and_nothing_is_believed(flask: Flask, guard: PeerGuard, token: str):
    with flask.test_request_context(headers=SAID | {"X-Corosrv-Token": token}):
        with pytest.raises(Unauthorized):
            guard.admit(request.environ)

        assert current_trip() is None
        assert not [field for field in ENVIRON_OF.values() if field in request.environ]


def test_a_request_that_was_here_is_refused_and_counted(flask: Flask, guard: PeerGuard, stats: DelegationStats):
    with (
        flask.test_request_context(headers=SAID | {"X-Corosrv-Path": "b,a"}),
        pytest.raises(LoopDetected),
    ):
        guard.admit(request.environ)

    assert stats.n_loops == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("X-Corosrv-Caller", "Bob"),
        ("X-Corosrv-Caller", "a" * 129),
        ("X-Corosrv-Elapsed-Ms", "-5"),
        ("X-Corosrv-Elapsed-Ms", "1e3"),
        ("X-Corosrv-Elapsed-Ms", "9" * 13),
        ("X-Corosrv-Hops", "x"),
        ("X-Corosrv-Path", "a b"),
    ],
)
def test_what_no_replica_writes_is_refused_by_name(flask: Flask, guard: PeerGuard, name: str, text: str):
    with flask.test_request_context(headers=SAID | {name: text}), pytest.raises(Refused, match=name):
        guard.admit(request.environ)


def onward(caller: str = "", passes_keys: bool = False, **fields: str) -> dict[str, str]:
    return dict(onward_headers(fields, "id-1", caller, TOKEN, passes_keys=passes_keys))


def test_a_request_goes_on_with_the_token_and_the_name_of_its_caller():
    headers = onward(CALLER)

    assert (headers["X-Corosrv-Token"], headers["X-Corosrv-Caller"]) == (TOKEN, CALLER)
    assert headers["X-Request-Id"] == "id-1"


@pytest.mark.parametrize("field", ["HTTP_AUTHORIZATION", "HTTP_X_API_KEY"])
def test_a_key_for_this_server_does_not_go_on(field: str):
    assert "secret" not in str(onward(CALLER, **{field: "secret"}))
    assert "secret" in str(onward(passes_keys=True, **{field: "secret"}))


def test_what_a_client_says_as_a_peer_does_not_go_on():
    assert "spoofed" not in str(onward(**{field: "spoofed" for field in ENVIRON_OF.values()}))


@pytest.mark.parametrize(
    "name",
    ["Content-Encoding", "Inference-Header-Content-Length", "Prefer", "Idempotency-Key", "X-Request-Timeout-Ms",
     "X-Capability-Type", "X-Priority"],
)  # fmt: skip
def test_what_a_peer_needs_to_read_the_request_goes_on(name: str):
    assert onward(**{f"HTTP_{name.upper().replace('-', '_')}": "5"})[name] == "5"
