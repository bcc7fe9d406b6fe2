"""The script that shares permits, alone, on a real Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis as redis_py

from corosrv.base.errors import RedisRefused
from corosrv.contracts.jobs.terms import CLASSES
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.namespace import SYNC
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

LEASE = 60_000


class ScriptFronts:
    """Fronts that run the script, and hear what it tells them."""

    def __init__(self, client: RedisClient, listening: Any) -> None:
        self._client = client
        self._script = client.script(SYNC)
        self._listening = listening
        self.epochs: dict[str, bytes] = {}
        self.hold = self.n_runs = 0
        self.held: dict[str, int] = {}
        self.stamps: dict[str, int] = {}  # of what waits

    def listen(self, *fronts: str) -> None:
        for front in fronts:
            self._listening.subscribe(f"to:{front}")
            while self._listening.get_message(timeout=10)["type"] != "subscribe":
                pass

    def told(self) -> list[str]:
        """Returns the fronts that were told something since this was last asked."""
        self._client.execute("PUBLISH", "to:end", "")
        fronts = []
        while (message := self._listening.get_message(timeout=10))["channel"] != b"to:end":
            fronts.append(message["channel"].decode().removeprefix("to:"))
        return fronts

    def sync(
        self, front: str, n: int = 0, *, cap: int = 4, held: int | None = None, used: int | None = None, band: int = 5,
        key: str = "", weight: float = 1.0, stamp: int = 0, uses: dict[str, int] | None = None, lease: int = LEASE,
        beat: int = 0, waiting: int | None = None, resources: tuple[str, ...] = ("u",), run: int | None = None,
    ) -> list[list[int]]:  # fmt: skip
        """Runs the script for a front, which uses all that it holds unless it says otherwise; `run`: its number."""
        self.n_runs += 1
        held = self.held.get(front, 0) if held is None else held
        used = held if used is None else used
        stamp = stamp or self.stamps.get(front, 0)
        words = [(cap, held, used, n, band, key, weight, stamp, uses or ({key: used} if used else {}))] * len(resources)
        waiting = max(n, 0) if waiting is None else waiting
        arguments = (
            *(front, self.epochs.get(front, b""), lease, beat, "to:", waiting, msgspec.msgpack.encode(words)),
            self.n_runs if run is None else run,
        )
        epoch, self.stamp, self.hold, *replies = self._script.run(["hub", f"run:{front}", *resources], arguments)
        self.epochs[front] = epoch
        self.stamps[front] = (stamp or self.stamp) if n > 0 else 0
        self.held[front] = replies[0][0]
        return replies


@pytest.fixture
def fronts(redis: RedisServer, client: RedisClient) -> Iterator[ScriptFronts]:
    connection = redis_py.Redis.from_url(redis.url)
    listening = connection.pubsub()
    found = ScriptFronts(client, listening)
    found.listen("end", "a", "b", "c")
    yield found
    listening.close()
    connection.close()


def test_a_front_alone_has_all_permits_and_no_more(fronts: ScriptFronts):
    assert fronts.sync("a", 9) == [[4, 0, 4]]
    assert fronts.sync("b", 1) == [[0, 1, 2]]


def test_two_fronts_at_rest_have_even_parts(fronts: ScriptFronts):
    fronts.sync("a")
    fronts.sync("b")
    assert fronts.told() == ["a"]
    assert fronts.sync("a", used=0) == [[4, 0, 2]]

    fronts.sync("a", held=2, used=0)

    assert fronts.told()[-1] == "b"
    assert fronts.sync("b", used=0) == [[2, 0, 2]]


def test_a_permit_that_is_given_back_is_kept_for_the_first_that_waits_who_is_told(fronts: ScriptFronts):
    fronts.sync("a", 9)
    fronts.sync("b", 2)
    fronts.told()

    assert fronts.sync("a", 5, held=3, band=6) == [[3, 1, 2]]

    assert "b" in fronts.told()
    assert fronts.sync("b", 2) == [[1, 0, 2]]  # and the next one is for b, too


def test_whoever_holds_idle_permits_is_told_that_others_wait(fronts: ScriptFronts):
    fronts.sync("a")
    fronts.sync("a", used=1)
    fronts.told()

    fronts.sync("b", 1)

    assert fronts.told() == ["a"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"band": 4}, {"band": 5}),
        ({"key": "idle"}, {"key": "busy"}),
        ({"key": "busy", "weight": 9.0}, {"key": "other", "uses": {"other": 1}}),
        ({"stamp": 7}, {"stamp": 8}),
        ({"band": 9, "stamp": 9, "key": "busy"}, {"band": CLASSES + 1, "stamp": 1}),
        ({"band": 4, "stamp": 9}, {"band": 5, "stamp": 1}),
        ({"band": 9, "key": "idle", "stamp": 9}, {"band": 1, "key": "busy", "stamp": 1}),
    ],
    ids=["class", "share", "weight", "arrival", "tier-first", "class-before-arrival", "share-before-class"],
)
@pytest.mark.parametrize("order", ["bc", "cb"])
def test_what_goes_first_is_tier_then_the_keys_share_then_class_then_arrival(
    fronts: ScriptFronts, first, second, order
):
    fronts.sync("a", 4, key="busy")
    terms = {"b": first, "c": second}
    for front in order:
        fronts.sync(front, 1, **terms[front])

    fronts.sync("a", held=3, key="busy", uses={"busy": 3})

    assert fronts.sync("c", 1, **second)[0][0] == 0
    assert fronts.sync("b", 1, **first)[0][0] == 1


def test_arrivals_are_counted_and_not_timed(fronts: ScriptFronts):
    fronts.sync("a")
    first = fronts.stamp
    fronts.sync("b")

    assert fronts.stamp == first + 1


def test_the_turn_of_a_front_that_nobody_hears_passes(fronts: ScriptFronts):
    fronts.sync("a", 4)
    fronts.sync("deaf", 4)
    fronts.sync("b", 1)

    fronts.sync("a", held=3)

    assert fronts.sync("b", 1)[0][0] == 1


def test_the_turn_of_a_front_that_hears_and_does_nothing_passes_after_a_while(fronts: ScriptFronts):
    fronts.sync("a", 4)
    fronts.sync("b", 4)
    fronts.sync("a", held=3)

    granted = [fronts.sync("a", 1)[0][0] for _ in range(10)]

    assert granted[0] == 3
    assert granted[-1] == 4


def test_permits_of_a_front_that_died_come_back_after_its_lease_and_its_calls_wait_no_more(fronts: ScriptFronts):
    fronts.sync("a", 3, lease=2000)
    fronts.sync("b", 1)
    for _ in range(9):  # others are heard all the time
        time.sleep(0.25)
        fronts.sync("b", 1, lease=2000)

    assert fronts.sync("b", 4, lease=2000)[0] == [4, 0, 4]


def test_a_front_that_comes_back_after_its_lease_has_what_it_uses_and_what_is_left(fronts: ScriptFronts):
    fronts.sync("a", 4)
    fronts._client.execute("HDEL", "u", "a")
    fronts.sync("b", 3)

    assert fronts.sync("a", held=4, used=2)[0][0] == 2
    assert fronts.sync("a", 1, held=2)[0][0] == 2  # five run, and no sixth


def test_an_empty_redis_grants_nothing_for_a_lease_in_which_fronts_tell_what_they_hold(fronts: ScriptFronts):
    fronts.sync("a", 4)
    fronts.sync("b", 1)
    fronts.sync("a", held=3)
    fronts.sync("b", 1)
    fronts._client.execute("FLUSHALL")

    assert fronts.sync("b", 4)[0][0] == 1
    assert 0 < fronts.hold <= LEASE
    assert fronts.sync("new", 4)[0][0] == 0
    assert fronts.sync("a", 4)[0][0] == 3
    fronts._client.execute("HSET", "hub", "until", "0")  # the lease is over
    assert fronts.sync("new", 4)[0][0] == 0
    assert fronts.sync("a", 4, held=2)[0][0] == 2  # for `new`, which waits since before


def test_a_restarted_redis_that_kept_its_state_holds_back_too(fronts: ScriptFronts):
    fronts.sync("a")
    fronts._client.execute("HSET", "hub", "run", "another")

    assert fronts.sync("a", 4, held=1)[0][0] == 1
    assert fronts.hold > 0


def test_a_pause_in_which_nobody_was_heard_takes_no_permits_from_anybody(fronts: ScriptFronts):
    fronts.sync("a", 4, lease=200)
    time.sleep(0.4)

    assert fronts.sync("b", 4, lease=200, beat=200)[0][0] == 0
    assert fronts.sync("a", 4, lease=200)[0][0] == 4


def test_a_front_that_has_just_started_waits_one_beat_on_an_empty_redis(fronts: ScriptFronts):
    fronts.sync("a", 1, beat=3000)

    assert 0 < fronts.hold <= 3000


def test_the_last_front_that_leaves_lets_the_next_one_start_at_once(fronts: ScriptFronts):
    fronts.sync("a", 4)
    fronts.sync("a", -1, waiting=-1)

    assert fronts.sync("b", 4, beat=3000)[0][0] == 4


def test_a_front_that_leaves_lets_others_have_its_permits_at_once(fronts: ScriptFronts):
    fronts.sync("a", 4)
    fronts.sync("b", 1)
    fronts.told()

    fronts.sync("a", -1, waiting=-1)

    assert fronts.told() == ["b"]
    assert fronts.sync("b", 1)[0][0] == 4


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000], ids=["back", "ahead"])
def test_a_clock_that_is_put_right_keeps_permits_and_takes_those_of_the_dead(fronts: ScriptFronts, ahead_ms: int):
    fronts.sync("a", 2)
    fronts.sync("dead", 1)
    fronts.sync("a", held=2)
    fronts.sync("dead", 1)
    then = int(time.time() * 1000) - ahead_ms
    for front in ("a", "dead"):
        record = msgspec.msgpack.decode(fronts._client.execute("HGET", "u", front)) | {"at": then}
        fronts._client.execute("HSET", "u", front, msgspec.msgpack.encode(record))
    fronts._client.execute("HSET", "hub", "last", then, "until", then if ahead_ms < 0 else 0)

    assert fronts.sync("a", 2, lease=400)[0][0] == 2
    assert fronts.hold <= 400
    eventually(lambda: fronts.sync("a", 2, lease=400)[0][0] == 4, what="the permits of the dead one")


@pytest.mark.parametrize("run", [1, 2], ids=["older", "equal"])
def test_a_run_that_comes_after_a_later_one_changes_nothing_and_says_so(fronts: ScriptFronts, run: int):
    fronts.sync("a", run=1)
    fronts.sync("a", 4, run=2)
    fronts.sync("b", 3)
    before = fronts._client.execute("HGETALL", "u"), fronts._client.execute("HGETALL", "hub")

    with pytest.raises(RedisRefused, match="STALE"):
        fronts.sync("a", held=0, run=run)

    assert (fronts._client.execute("HGETALL", "u"), fronts._client.execute("HGETALL", "hub")) == before
    assert fronts.sync("b", 3)[0][0] == 0


def test_a_run_that_comes_after_its_front_has_left_leaves_no_record(fronts: ScriptFronts):
    fronts.sync("a", 4, run=1)
    fronts.sync("b", 1)
    fronts.sync("a", -1, waiting=-1, run=3)

    with pytest.raises(RedisRefused, match="STALE"):
        fronts.sync("a", 4, held=4, run=2)

    assert fronts.sync("b", 4)[0][0] == 4


def test_each_front_counts_for_itself(fronts: ScriptFronts):
    fronts.sync("a", 4, run=9)

    assert fronts.sync("b", 1, run=1)[0][0] == 0


def test_a_call_that_waits_for_two_resources_gets_one_permit(fronts: ScriptFronts):
    fronts.sync("b", cap=0, resources=("u", "v"))

    replies = fronts.sync("a", 1, cap=1, resources=("u", "v"))

    assert [held for held, *_ in replies] == [1, 0]


@pytest.mark.parametrize("stranger", [b"", b"\xc1", msgspec.msgpack.encode({"at": 1e300}), msgspec.msgpack.encode([1])])
def test_what_is_no_record_is_removed(fronts: ScriptFronts, stranger: bytes):
    fronts.sync("a")
    fronts._client.execute("HSET", "u", "stranger", stranger)

    assert fronts.sync("a", 4)[0] == [4, 0, 4]
    assert fronts._client.execute("HLEN", "u") == 1


def test_a_record_has_neither_keys_nor_bodies_in_it(fronts: ScriptFronts):
    fronts.sync("a", 1, key="hash")

    names = set(msgspec.msgpack.decode(fronts._client.execute("HGET", "u", "a")))

    assert names == {"at", "held", "used", "n", "band", "share", "weight", "stamp", "uses", "offers"}
