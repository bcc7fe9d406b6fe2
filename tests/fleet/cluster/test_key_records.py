"""Records of idempotency keys in a real Redis, by two fronts."""

from __future__ import annotations

import itertools

import gevent
import pytest

from corosrv.base.errors import Conflict, KeyReused
from corosrv.fleet.cluster import key_records
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.key_records import LEASE, MAX_ANSWER, RECORD_BYTES, KeyRecords, LeasedClaim
from corosrv.fleet.cluster.namespace import KeyNames
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import eventually

NAMES = KeyNames("test")
RECORD = NAMES.name("record", "me", "k")
MAX_BYTES = 10 * RECORD_BYTES


def records_of(client: RedisClient) -> KeyRecords:
    return KeyRecords(client, NAMES, MAX_BYTES, lifetime=3600)


@pytest.fixture
def a(client: RedisClient) -> KeyRecords:
    return records_of(client)


@pytest.fixture
def b(client: RedisClient) -> KeyRecords:
    return records_of(client)


def claim(records: KeyRecords, key: str = "k", digest: bytes = b"d", caller: str = "me") -> LeasedClaim:
    begun = records.begin(caller, key, digest)
    assert isinstance(begun, LeasedClaim)
    return begun


def keep(records: KeyRecords, key: str, answer: bytes, caller: str = "me") -> None:
    claim(records, key, caller=caller).finish(answer)
    records.write()


def test_an_answer_that_one_front_kept_is_given_by_the_other(a: KeyRecords, b: KeyRecords):
    keep(a, "k", b"answer")

    assert b.begin("me", "k", b"d") == b"answer"


def test_a_key_that_runs_in_one_front_is_refused_by_the_other(a: KeyRecords, b: KeyRecords):
    claim(a)

    with pytest.raises(Conflict, match="still running") as error:
        b.begin("me", "k", b"d")
    assert error.value.retry_after == 1


def test_another_request_under_a_key_is_refused_while_it_runs_and_later(a: KeyRecords, b: KeyRecords):
    first = claim(a)
    with pytest.raises(KeyReused):
        b.begin("me", "k", b"other")

    first.finish(b"answer")
    a.write()

    with pytest.raises(KeyReused):
        b.begin("me", "k", b"other")


def test_a_dropped_key_is_free(a: KeyRecords, b: KeyRecords):
    claim(a).drop()
    a.write()

    claim(b)


def test_callers_have_keys_of_their_own(a: KeyRecords, b: KeyRecords):
    claim(a)

    claim(b, caller="other")


def test_a_claim_ends_once(a: KeyRecords, b: KeyRecords):
    first = claim(a)
    first.drop()
    first.finish(b"late")
    a.write()

    claim(b)


def test_a_lease_is_short_and_renewed_while_the_call_runs(a: KeyRecords, client: RedisClient):
    claim(a)
    assert 0 < client.execute("PTTL", RECORD) <= LEASE * 1000
    client.execute("PEXPIRE", RECORD, 2000)

    a.renew()

    assert client.execute("PTTL", RECORD) > 2000


def test_a_front_that_died_frees_its_key_and_its_late_end_changes_nothing(
    a: KeyRecords, b: KeyRecords, client: RedisClient
):
    lost = claim(a)
    client.execute("DEL", RECORD)  # as if its lease had ended
    second = claim(b)

    a.renew()
    lost.finish(b"late")
    a.write()
    second.finish(b"answer")
    b.write()

    assert a.begin("me", "k", b"d") == b"answer"


def test_a_front_that_lost_its_lease_neither_renews_nor_drops_that_of_another(
    a: KeyRecords, b: KeyRecords, client: RedisClient
):
    lost = claim(a)
    client.execute("DEL", RECORD)  # as if its lease had ended
    claim(b)
    client.execute("PEXPIRE", RECORD, 2000)

    a.renew()
    lost.drop()
    a.write()

    assert 0 < client.execute("PTTL", RECORD) <= 2000


def test_an_answer_that_replaces_another_of_its_key_counts_once(a: KeyRecords, client: RedisClient):
    for _ in range(3):
        keep(a, "k", b"x" * RECORD_BYTES)
        client.execute("DEL", RECORD)  # as if its time were over

    assert int(client.execute("HGET", NAMES.name("record-sizes", "me"), "")) == 2 * RECORD_BYTES


def test_a_claim_that_was_abandoned_is_dropped_instead_of_renewed(a: KeyRecords, b: KeyRecords):
    claim(a).abandon()

    a.renew()
    a.write()

    claim(b)


def test_the_oldest_answers_of_a_caller_make_room(a: KeyRecords, b: KeyRecords, client: RedisClient):
    keep(a, "other", b"kept", caller="you")
    for number in range(8):
        keep(a, f"k{number}", b"x" * RECORD_BYTES)

    answered = [number for number in range(8) if isinstance(b.begin("me", f"k{number}", b"d"), bytes)]

    assert answered == [3, 4, 5, 6, 7]  # two times RECORD_BYTES each
    assert int(client.execute("HGET", NAMES.name("record-sizes", "me"), "")) == 10 * RECORD_BYTES
    assert b.begin("you", "other", b"d") == b"kept"


def test_an_answer_without_room_leaves_its_key_free(a: KeyRecords, b: KeyRecords):
    keep(a, "k", b"x" * MAX_BYTES)

    claim(b)


def test_an_answer_that_is_too_large_to_be_sent_leaves_its_key_free(client: RedisClient):
    records = KeyRecords(client, NAMES, 1 << 30, lifetime=3600)
    keep(records, "k", b"x" * (MAX_ANSWER + 1))

    claim(records)


def test_answers_that_wait_to_be_written_have_a_limit(a: KeyRecords, b: KeyRecords, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_records, "MAX_PENDING", 10)
    for key in ("k1", "k2"):
        claim(a, key).finish(b"answer")
    a.write()
    keep(a, "k3", b"answer")

    assert [b.begin("me", key, b"d") for key in ("k1", "k3")] == [b"answer"] * 2
    claim(b, "k2")


def test_an_answer_is_written_when_it_is_there(a: KeyRecords, b: KeyRecords, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_records, "RENEWAL", 600.0)
    a.start()
    gevent.idle()  # it waits for the next renewal

    claim(a).finish(b"answer")
    gevent.idle()

    assert b.begin("me", "k", b"d") == b"answer"
    a.close()


def test_what_is_not_written_yet_is_at_the_end(a: KeyRecords, b: KeyRecords):
    a.start()
    claim(a).finish(b"answer")

    a.close()

    assert b.begin("me", "k", b"d") == b"answer"


def test_answers_whose_time_is_over_count_no_more(client: RedisClient):
    short = KeyRecords(client, NAMES, MAX_BYTES, lifetime=0.001)
    numbers = itertools.count()

    def count_after_another() -> int:
        keep(short, f"k{next(numbers)}", b"x")
        return int(client.execute("ZCARD", NAMES.name("records", "me")))

    keep(short, "first", b"x")
    eventually(lambda: count_after_another() == 1, what="the answers before the last one are gone")


def test_without_redis_nothing_is_shared_and_nothing_waits(a: KeyRecords):
    away = records_of(RedisClient("redis://127.0.0.1:1", timeout=0.2))
    running = claim(a)

    assert away.begin("me", "k", b"d") is None
    running.drop()


def lose_and_return(server: RedisServer) -> bytes | LeasedClaim | None:
    """Keeps an answer, kills Redis, starts it again, and asks for the answer."""
    client = RedisClient(server.url, timeout=5)
    records = records_of(client)
    keep(records, "k", b"answer")
    server.kill()
    server.start()
    client.ping()
    assert client.ping()
    begun = records.begin("me", "k", b"d")
    client.close()
    return begun


def test_without_a_file_a_killed_redis_loses_the_answers_and_their_keys_are_free():
    with redis_server(appendonly="no") as server:
        assert isinstance(lose_and_return(server), LeasedClaim)


def test_with_a_file_written_always_a_killed_redis_loses_no_answer():
    with redis_server(appendonly="yes", appendfsync="always") as server:
        assert lose_and_return(server) == b"answer"


def test_a_call_that_runs_while_redis_loses_everything_has_its_key_again(own_redis: RedisServer):
    client = RedisClient(own_redis.url, timeout=5)
    a, b = records_of(client), records_of(client)
    running = claim(a)
    own_redis.kill()
    own_redis.start()
    client.ping()
    assert client.ping()

    a.renew()

    with pytest.raises(Conflict):
        b.begin("me", "k", b"d")
    running.finish(b"answer")
    a.write()
    assert b.begin("me", "k", b"d") == b"answer"
    client.close()
