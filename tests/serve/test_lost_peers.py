"""A replica whose peers die, or stop without a word, while they have requests of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from corosrv.gateway.delegation.roster import STALE_AFTER
from tests.serve.replicas import Replica, ports, replica
from tests.serve.server import Servers
from tests.serve.wire import CHAT, Answer, chat, events, request
from tests.support.waiting import eventually

KEY = "a-key-of-the-peer-alone"
LIMIT = 60.0  # seconds for what takes STALE_AFTER and a little


@dataclass
class Trio:
    """A replica and two peers, of which one is killed and one is stopped."""

    here: Replica
    mortal: Replica
    sleeper: Replica

    def ask(self, model: str) -> Answer:
        with self.here.server.connect() as connection:
            return connection.post(chat(model=model, max_tokens=2))


@pytest.fixture(scope="module")
def trio(request: pytest.FixtureRequest) -> Iterator[Trio]:
    kept: Servers = request.getfixturevalue("_kept")
    slow = "synthetic:?tokens_per_s=20"
    with ports(3) as (a, b, c), ExitStack() as stack:
        mortal = stack.enter_context(replica(kept, "mortal", b, wait_for=None, model=f"mortal={slow}"))
        sleeper = stack.enter_context(replica(kept, "sleeper", c, wait_for=None, model=f"sleeper={slow}", api_keys=KEY))
        here = stack.enter_context(replica(kept, "here", a, b.url, c.url, model="own=synthetic:"))
        for peer in (mortal, sleeper):
            here.wait_peer(peer.base_url, "ready")
        yield Trio(here, mortal, sleeper)


def test_a_peer_that_is_killed_ends_its_stream_in_an_error_and_gets_nothing_more(trio: Trio):
    with trio.here.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="mortal", stream=True, max_tokens=2000)))
        connection.head()
        trio.mortal.server.stop()
        pieces = b"".join(connection.pieces())

    assert "the replica mortal" in events(pieces)[-1]["error"]["message"]
    eventually(lambda: trio.here.peers()[trio.mortal.base_url]["state"] in ("down", "stale"), 30, "it is missed")
    answer = trio.ask("mortal")
    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (404, "here")
    assert trio.ask("own").status == 200


def test_a_peer_that_asks_for_keys_believes_the_token_and_no_caller_s_word(trio: Trio):
    with trio.sleeper.server.connect() as connection:
        direct = connection.post(chat(model="sleeper"), CHAT, {"X-Corosrv-Caller": "ab", "X-Corosrv-Path": "here"})

    assert direct.status == 401
    assert trio.ask("sleeper").status == 200


@pytest.mark.slow
def test_a_peer_that_is_stopped_loses_its_calls_when_it_is_stale(trio: Trio):
    with trio.here.server.connect(timeout=LIMIT) as connection:
        (worker,) = trio.sleeper.server.workers()
        os.kill(worker, signal.SIGSTOP)
        try:
            connection.send(request("POST", CHAT, chat(model="sleeper")))
            trio.here.server.wait_metric("delegated_in_flight", 1)
            assert trio.ask("own").status == 200, "the front stays answering"
            answer = connection.answer("POST")
        finally:
            os.kill(worker, signal.SIGCONT)

    assert answer.status == 502
    assert answer.error["message"] == "the replica sleeper does not answer any more"
    trio.here.wait_peer(trio.sleeper.base_url, "ready", STALE_AFTER)
    assert trio.ask("sleeper").status == 200
