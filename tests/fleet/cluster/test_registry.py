"""The registry of fronts on a real Redis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corosrv.base.errors import RedisUnavailable
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.fleet.cluster import registry
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.namespace import KeyNames
from corosrv.fleet.cluster.registry import EXPIRY, MAX_BYTES, RENEWAL, FrontOffer, FrontRegistry
from tests.support.patched import run_patched
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

ECHO = HandlerCard("echo", "2", concurrency=3)
SMALL = HandlerCard("", capability={"size": 1})
NAMES = KeyNames("test")


class Front:
    """One front: its registry, what it serves, and its clock."""

    def __init__(self, client: RedisClient, id: str) -> None:
        self.served = FrontOffer("host")
        self.now = 0.0
        self.registry = FrontRegistry(client, NAMES, id, lambda: self.served, lambda: self.now)

    @property
    def others(self) -> list[HandlerCard]:
        return [card for record in self.registry.other_fronts for card in record.served.handlers.get("app", ())]

    def serve(self, *cards: HandlerCard) -> None:
        self.served = FrontOffer("host", [], {"app": list(cards)})
        self.registry.update()


MakeFront = Callable[[str], Front]


@pytest.fixture
def front(client: RedisClient) -> MakeFront:
    return lambda id: Front(client, id)


def test_what_a_front_serves_is_known_to_others_and_not_to_itself(front: MakeFront):
    a, b = front("a"), front("b")
    a.serve(ECHO, SMALL)

    b.registry.update()

    assert b.others == [ECHO, SMALL]
    a.registry.update()
    assert a.others == []


def test_a_front_that_leaves_serves_nothing_at_once(front: MakeFront):
    a, b = front("a"), front("b")
    a.serve(ECHO)
    b.registry.update()

    a.registry.leave()
    a.registry.update()
    b.registry.update()

    assert b.others == []


def follow_notices(url: str) -> list[list[str]]:
    """Returns the fronts that one sees when another comes, and when it has gone."""
    registry.READ_INTERVAL = registry.RENEWAL = 600.0  # so that nothing but notices brings a look
    clients = [RedisClient(url, timeout=5) for _ in range(2)]
    fronts = [Front(client, id) for client, id in zip(clients, "ab", strict=True)]
    seen = []
    fronts[1].registry.start()
    channel = NAMES.name("fronts", "changed")
    wait_until(lambda: int(clients[0].execute("PUBSUB", "NUMSUB", channel)[1]) == 1, "it listens")
    fronts[0].registry.start()
    wait_until(lambda: fronts[1].registry.other_fronts, "a is there")
    seen.append([record.id for record in fronts[1].registry.other_fronts])
    clients[0].ping()
    fronts[0].registry.close()
    wait_until(lambda: not fronts[1].registry.other_fronts, "a is gone")
    seen.append([record.id for record in fronts[1].registry.other_fronts])
    fronts[1].registry.close()
    return seen


def test_fronts_that_come_and_leave_are_told_at_once(own_redis: RedisServer):
    assert run_patched(follow_notices, own_redis.url) == [["a"], []]


def test_a_front_that_says_nothing_more_is_forgotten(front: MakeFront, client: RedisClient):
    a, b = front("a"), front("b")
    a.serve(ECHO)
    b.registry.update()
    assert 0 < client.execute("PTTL", NAMES.name("served", "a")) <= EXPIRY * 1000

    client.execute("PEXPIRE", NAMES.name("served", "a"), 1)  # as if its time were over
    while client.execute("EXISTS", NAMES.name("served", "a")):
        pass
    b.registry.update()

    assert b.registry.other_fronts == ()


def test_fronts_that_are_gone_leave_nothing_in_redis(front: MakeFront, client: RedisClient):
    client.execute("ZADD", NAMES.name("fronts"), 1, "gone")  # in 1970

    front("a").registry.update()

    assert client.execute("ZRANGE", NAMES.name("fronts"), 0, -1) == [b"a"]


def test_a_front_renews_before_its_time_is_over(front: MakeFront, client: RedisClient):
    a = front("a")
    a.registry.update()
    client.execute("PEXPIRE", NAMES.name("served", "a"), 5000)

    a.now += RENEWAL / 2
    a.registry.update()
    assert client.execute("PTTL", NAMES.name("served", "a")) <= 5000

    a.now += RENEWAL
    a.registry.update()
    assert client.execute("PTTL", NAMES.name("served", "a")) > 5000


def test_a_redis_that_lost_everything_has_each_front_again(own_redis: RedisServer):
    client = RedisClient(own_redis.url, timeout=5)
    a, b = Front(client, "a"), Front(client, "b")
    a.serve(ECHO)
    own_redis.kill()
    with pytest.raises(RedisUnavailable):
        a.registry.update()
    own_redis.start()
    assert client.ping()

    a.registry.update()
    b.registry.update()

    assert b.others == [ECHO]
    client.close()


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93", b"{}", b"\x83" + b"x" * 100, b"\x90"], ids=repr)
def test_what_is_no_description_serves_nothing(body: bytes, front: MakeFront, client: RedisClient):
    a, b = front("a"), front("b")
    a.serve(ECHO)
    client.execute("HSET", NAMES.name("served", "a"), "version", "other", "body", body)

    b.registry.update()

    assert [record.id for record in b.registry.other_fronts] == ["a"]
    assert b.others == []


def test_a_key_of_another_type_stops_nobody(front: MakeFront, client: RedisClient):
    a, b = front("a"), front("b")
    a.serve(ECHO)
    client.execute("ZADD", NAMES.name("fronts"), 10**14, "odd")
    client.execute("SET", NAMES.name("served", "odd"), "x")

    b.registry.update()

    assert [record.id for record in b.registry.other_fronts] == ["a"]


def test_a_look_at_fronts_that_have_not_changed_reads_no_description(front: MakeFront, client: RedisClient):
    a, b = front("a"), front("b")
    a.serve(ECHO)
    b.registry.update()
    client.execute("CONFIG", "RESETSTAT")

    b.registry.update()

    assert b"cmdstat_hmget" not in client.execute("INFO", "commandstats")


def test_a_description_that_is_too_large_serves_nothing(front: MakeFront):
    a, b = front("a"), front("b")
    a.served = FrontOffer("x" * MAX_BYTES, [], {"app": [ECHO]})
    a.registry.update()

    b.registry.update()

    assert [record.id for record in b.registry.other_fronts] == ["a"]
    assert b.others == []


def test_without_redis_the_copy_stays_for_its_time_and_no_longer(own_redis: RedisServer):
    client = RedisClient(own_redis.url, timeout=5)
    a, b = Front(client, "a"), Front(client, "b")
    a.serve(ECHO)
    b.registry.step()
    own_redis.kill()

    b.now += EXPIRY / 2
    b.registry.step()
    assert b.others == [ECHO]

    b.now += EXPIRY
    b.registry.step()
    assert b.others == []
    client.close()
