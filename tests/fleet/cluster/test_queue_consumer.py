"""What a front takes out of a shared queue, and when: its Redis answers as a test says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult

from corosrv.base.errors import RedisUnavailable
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.fleet.cluster import queue_consumer, queue_scripts
from corosrv.fleet.cluster.delivery import Delivered
from corosrv.fleet.cluster.health import LinkHealth
from corosrv.fleet.cluster.queue_consumer import QueueConsumer
from corosrv.fleet.cluster.queue_names import KeyNames, QueueNames, QueueTiming
from tests.support.waiting import wait_until

KEYS = frozenset({"model:m"})
BELL = "app|model:m"
NOW = b"1000"  # ms, by Redis' clock
ENTRY = (0, b"1-0", 1, b"call", b"front", b"0", b"body")


class OneHandler:
    """A dispatcher with one handler, of whose permits a test says how many are free."""

    def __init__(self) -> None:
        self.n_free = 1
        self.is_here = True

    def free_permits(self) -> dict[frozenset[str], int]:
        return {KEYS: self.n_free}

    def card_of(self, key: str) -> HandlerCard | None:
        return HandlerCard("m") if self.is_here and key in KEYS else None

    def known_keys(self) -> Sequence[str]:
        return list(KEYS)

    def submit_here(self, job: Any) -> Any:
        raise AssertionError("no delivery runs here")


class SlowRedis:
    """Keeps each script that reads waiting until a test replies to it, and has the claims that a test gave it."""

    def __init__(self) -> None:
        self.wanted: list[int] = []  # numbers of entries that were asked for
        self.low: list[int] = []  # how many of them were to be low ones
        self.claims: list[tuple[str, bytes]] = []  # streams, and cursors
        self.claimed: list[tuple[bytes, list[Any]]] = []  # replies to the next claims: cursors, and entries
        self.hold_ms = 0  # that is left after a restart
        self._reply: AsyncResult[Any] = AsyncResult()

    def run(self, text: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        if text is queue_scripts.CLAIM:
            self.claims.append((keys[0].rpartition(":")[2], arguments[2]))
            cursor, entries = self.claimed.pop(0) if self.claimed else (b"0-0", [])
            return cursor, NOW, entries
        if not (n_wanted := arguments[1]):  # asks for the length alone
            return (b"epoch", self.hold_ms, NOW, [], [1, 0, 0], 0)
        self.wanted.append(n_wanted)
        self.low.append(arguments[2])
        self._reply = AsyncResult()
        return self._reply.get(timeout=60)

    def reply(self, *entries: Any, n_waiting: int = 0) -> None:
        self._reply.set((b"epoch", self.hold_ms, NOW, list(entries), [n_waiting, 0, 0], 0))

    def fail(self, error: Exception) -> None:
        self._reply.set_exception(error)


class Begun:
    """Keeps the calls that have come, which start when a test says so, and those that go back."""

    def __init__(self) -> None:
        self.starts: list[Callable[[], None]] = []
        self.delivered: list[Delivered] = []
        self.returned: list[str] = []

    def begin(self, delivered: Delivered, card: HandlerCard, submit: Any, on_start: Callable[[], None]) -> None:
        self.delivered.append(delivered)
        self.starts.append(on_start)

    def return_entry(self, delivered: Delivered) -> None:
        self.returned.append(delivered.entry_id)


class Case:
    def __init__(self) -> None:
        self.handler, self.redis, self.begun = OneHandler(), SlowRedis(), Begun()
        self.health = LinkHealth("redis")
        self.health.succeed()
        names = QueueNames(KeyNames("test"), "front")
        self.consumer = QueueConsumer(
            "app",
            self.handler,
            names,
            self.redis,  # type: ignore[arg-type]
            self.health,
            self.begun,  # type: ignore[arg-type]
            QueueTiming(),
            lambda epoch: None,
        )

    @property
    def has_unreserved(self) -> bool:
        return self.consumer.has_unreserved("model:m")

    def ring(self, *, is_idle: bool = False) -> None:
        self.consumer.on_bell(BELL, is_idle)

    def await_pull(self, n: int) -> None:
        wait_until(lambda: len(self.redis.wanted) == n, f"pull number {n}")


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(queue_consumer, "LOOK_INTERVAL", 600.0)  # no look but those that something has brought about
    case = Case()
    case.consumer.start()
    yield case
    case.consumer.close()
    gevent.idle()


def test_a_permit_for_which_an_entry_is_on_its_way_is_not_given_to_another_call(case: Case):
    assert case.has_unreserved
    case.ring()
    case.await_pull(1)

    assert not case.has_unreserved

    case.redis.reply(ENTRY)
    wait_until(lambda: case.begun.starts, "the call has come")
    assert not case.has_unreserved  # it has not taken its permit yet
    case.begun.starts[0]()
    assert case.has_unreserved


def test_a_permit_for_which_nothing_came_is_free_again(case: Case):
    case.ring()
    case.await_pull(1)

    case.redis.reply()

    wait_until(lambda: case.has_unreserved, "it is free")


def test_a_permit_whose_entry_was_lost_with_redis_is_free_again(case: Case):
    case.ring()
    case.await_pull(1)

    case.redis.fail(RedisUnavailable("it was lost"))

    wait_until(lambda: case.has_unreserved, "it is free")


def test_no_more_is_asked_for_than_permits_without_an_entry_on_its_way(case: Case):
    case.handler.n_free = 3
    case.ring()
    case.await_pull(1)

    case.redis.reply(ENTRY, n_waiting=5)
    wait_until(lambda: case.begun.starts, "the call has come")
    case.consumer.on_free()
    case.await_pull(2)

    assert case.redis.wanted == [3, 2]


def test_the_bell_of_another_domain_or_handler_wakes_nobody(case: Case):
    case.consumer.on_bell("upstreams|model:m", False)
    case.consumer.on_bell("app|model:other", False)

    assert not case.consumer.backlogs


def test_after_a_stop_nothing_is_asked_for(case: Case):
    case.consumer.stop()
    case.ring()
    gevent.idle()

    assert case.redis.wanted == []


def test_no_more_than_a_batch_is_asked_for_at_once(case: Case):
    case.handler.n_free = 1000
    case.ring()
    case.await_pull(1)

    assert case.redis.wanted == [queue_consumer.PULL_AT_ONCE]


def test_after_as_many_as_were_wanted_the_next_are_asked_for_at_once(case: Case):
    case.ring()
    case.await_pull(1)

    case.handler.n_free = 3
    case.redis.reply(ENTRY, n_waiting=7)
    case.await_pull(2)

    assert case.redis.wanted == [1, 2]


def test_the_tenth_entry_is_to_be_a_low_one(case: Case):
    for number in range(1, 12):
        case.ring()
        case.await_pull(number)
        case.redis.reply(ENTRY if number != 10 else (2, *ENTRY[1:]))
        wait_until(lambda number=number: len(case.begun.starts) == number, "the call has come")
        case.begun.starts[-1]()

    assert case.redis.low == [*[0] * 9, 1, 0]


def test_nothing_is_read_while_fronts_say_what_they_still_run(case: Case):
    case.ring()
    case.await_pull(1)

    case.redis.hold_ms = 600_000
    case.redis.reply(n_waiting=1)
    gevent.idle()
    case.ring()
    gevent.idle()

    assert len(case.redis.wanted) == 1


def test_nothing_is_read_while_redis_is_away(case: Case):
    case.health.fail("it was lost")
    case.ring()
    gevent.idle()

    assert case.redis.wanted == []


def test_an_entry_whose_last_worker_has_left_goes_back_and_takes_no_permit(case: Case):
    case.ring()
    case.await_pull(1)

    case.handler.is_here = False
    case.redis.reply(ENTRY)
    wait_until(lambda: case.begun.returned, "it goes back")

    assert (case.begun.returned, case.begun.delivered) == (["1-0"], [])
    assert case.has_unreserved


@pytest.mark.parametrize(("error", "is_bug"), [(RedisUnavailable("it was lost"), False), (KeyError("a bug"), True)])
def test_a_reading_that_fails_is_not_the_last(case: Case, error: Exception, is_bug: bool, caplog):
    case.ring()
    case.await_pull(1)

    with caplog.at_level(logging.ERROR, "corosrv.cluster"):
        case.redis.fail(error)
        gevent.idle()
        case.ring()
        case.await_pull(2)

    assert bool(caplog.records) is is_bug


@pytest.mark.parametrize(("deadline", "remaining"), [(b"3500", 2.5), (b"0", None)])
def test_a_call_has_the_time_that_is_left_by_redis_clock(case: Case, deadline: bytes, remaining: float | None):
    case.ring()
    case.await_pull(1)

    case.redis.reply((0, b"1-0", 1, b"call", b"front", deadline, b"body"))
    wait_until(lambda: case.begun.delivered, "the call has come")

    assert case.begun.delivered[0].remaining == remaining


def test_the_backlog_is_what_was_last_seen(case: Case):
    case.ring()
    case.await_pull(1)
    assert case.consumer.backlogs == {"model:m": 1}

    case.redis.reply()
    wait_until(lambda: case.has_unreserved, "the reply has come")

    assert not case.consumer.backlogs


def test_entries_of_lost_fronts_are_claimed_from_all_bands_to_the_end(case: Case):
    case.handler.n_free = 0
    case.redis.claimed = [(b"5-0", []), (b"0-0", [ENTRY])]
    case.ring(is_idle=True)
    wait_until(lambda: case.begun.delivered, "the entry was claimed")
    gevent.idle()

    assert case.redis.claims == [("high", b"0-0"), ("high", b"5-0"), ("normal", b"0-0"), ("low", b"0-0")]
    assert not case.consumer.is_claim_due


def test_nothing_is_claimed_that_cannot_run_here(case: Case):
    case.ring(is_idle=True)
    case.handler.is_here = False
    gevent.idle()

    assert case.redis.claims == []
