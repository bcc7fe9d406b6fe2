"""Fronts that share a Redis and the peers' token, and answer for each other without being named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
import pytest
import redis as redis_py

from corosrv.fleet.cluster.registry import FrontOffer, encode
from tests.serve.replicas import TOKEN, Replica, ports, replica
from tests.serve.server import Servers
from tests.serve.wire import Answer, chat
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import eventually


@dataclass
class Pair:
    """Two fronts, of which each has a model, and all that they have sent to Redis."""

    redis: RedisServer
    seen: bytearray
    here: Replica
    other: Replica

    def ask(self, model: str) -> Answer:
        with self.here.server.connect() as connection:
            return connection.post(chat(model=model, max_tokens=2))


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    kept: Servers = request.getfixturevalue("_kept")
    with redis_server() as redis, ports(2) as (a, b), ExitStack() as stack:
        seen = stack.enter_context(redis.monitor())
        here, other = [
            stack.enter_context(
                replica(kept, name, port, redis_url=redis.url, peer_url=port.url, model=f"{name}=synthetic:")
            )
            for name, port in (("here", a), ("other", b))
        ]
        for one, peer in ((here, other), (other, here)):
            eventually(lambda one=one, peer=peer: peer.base_url in one.peers(), what="a peer is found")
            one.wait_peer(peer.base_url, "ready")
        yield Pair(redis, seen, here, other)


def test_a_model_of_another_front_is_reached_and_no_secret_is_written_into_redis(pair: Pair):
    answer = pair.ask("other")

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "other")
    assert pair.here.peers()[pair.other.base_url]["found"] is True
    assert pair.other.base_url.encode() in pair.seen
    assert TOKEN.encode() not in pair.seen


def test_a_stranger_in_redis_is_no_peer_and_is_logged_once(pair: Pair):
    body, version = encode(FrontOffer("host", ["m"], {}, "http://127.0.0.1:1", "0" * 64))
    with redis_py.Redis.from_url(pair.redis.url) as client:
        client.zadd("corosrv:{default}:fronts", {"stranger": 1e14})
        client.hset("corosrv:{default}:served:stranger", mapping={"version": version, "body": body})

        eventually(lambda: "'stranger' is ignored" in pair.here.server.log, what="a line")
        eventually(lambda: b"stranger" in msgspec.json.encode(pair.here.manage("GET", "/v1/fronts")), what="its record")

    assert pair.here.peers().keys() == {pair.other.base_url}
    assert pair.here.server.log.count("'stranger' is ignored") == 1


def test_a_front_that_stops_is_no_peer_any_more(pair: Pair):
    pair.other.server.stop()

    eventually(lambda: not pair.here.peers(), what="no peer")
    assert pair.ask("other").status == 404
    assert pair.ask("here").status == 200
