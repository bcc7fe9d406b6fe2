"""What a front takes out of a shared queue, and when: its Redis answers as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult

from corosrv.cluster.delivery import Delivered
from corosrv.cluster.health import LinkHealth
from corosrv.cluster.keys import KeyNames
from corosrv.cluster.queue_consumer import QueueConsumer
from corosrv.cluster.queue_names import QueueNames
from corosrv.cluster.queue_timing import QueueTiming
from corosrv.errors import RedisUnavailable
from corosrv.jobs.infer import HandlerCard
from tests.support.waiting import wait_until

KEYS = frozenset({"model:m"})
BELL = "app|model:m"
ENTRY = (0, b"1-0", 1, b"call", b"front", b"0", b"body")


class OneHandler:
    """A dispatcher with one handler, of whose permits a test says how many are free."""

    def __init__(self) -> None:
        self.n_free = 1

    def free_permits(self) -> dict[frozenset[str], int]:
        return {KEYS: self.n_free}

    def card_of(self, key: str) -> HandlerCard | None:
        return HandlerCard("m") if key in KEYS else None

    def known_keys(self) -> Sequence[str]:
        return list(KEYS)

    def submit_here(self, job: Any) -> Any:
        raise AssertionError("no delivery runs here")


class SlowRedis:
    """Keeps each script waiting until a test replies to it."""

    def __init__(self) -> None:
        self.wanted: list[int] = []  # numbers of entries that were asked for
        self._reply: AsyncResult[Any] = AsyncResult()

    def run(self, text: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        if not (n_wanted := arguments[1]):  # asks for the length alone
            return (b"epoch", 0, b"0", [], [1, 0, 0])
        self.wanted.append(n_wanted)
        self._reply = AsyncResult()
        return self._reply.get(timeout=60)

    def reply(self, *entries: Any, n_waiting: int = 0) -> None:
        self._reply.set((b"epoch", 0, b"0", list(entries), [n_waiting, 0, 0]))

    def fail(self) -> None:
        self._reply.set_exception(RedisUnavailable("it was lost"))


class Begun:
    """Keeps the calls that have come, which start when a test says so."""

    def __init__(self) -> None:
        self.starts: list[Callable[[], None]] = []

    def begin(self, delivered: Delivered, card: HandlerCard, submit: Any, on_start: Callable[[], None]) -> None:
        self.starts.append(on_start)


class Case:
    def __init__(self) -> None:
        self.handler, self.redis, self.begun = OneHandler(), SlowRedis(), Begun()
        health = LinkHealth("redis")
        health.succeed()
        names = QueueNames(KeyNames("test"), "front")
        self.consumer = QueueConsumer(
            "app",
            self.handler,
            names,
            self.redis,  # type: ignore[arg-type]
            health,
            self.begun,  # type: ignore[arg-type]
            QueueTiming(),
            lambda epoch: None,
        )

    @property
    def has_unreserved(self) -> bool:
        return self.consumer.has_unreserved("model:m")

    def await_pull(self, n: int) -> None:
        wait_until(lambda: len(self.redis.wanted) == n, f"pull number {n}")


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    case.consumer.start()
    yield case
    case.consumer.close()
    gevent.idle()


def test_a_permit_for_which_an_entry_is_on_its_way_is_not_given_to_another_call(case: Case):
    assert case.has_unreserved
    case.consumer.on_bell(BELL, False)
    case.await_pull(1)

    assert not case.has_unreserved

    case.redis.reply(ENTRY)
    wait_until(lambda: case.begun.starts, "the call has come")
    assert not case.has_unreserved  # it has not taken its permit yet
    case.begun.starts[0]()
    assert case.has_unreserved


def test_a_permit_for_which_nothing_came_is_free_again(case: Case):
    case.consumer.on_bell(BELL, False)
    case.await_pull(1)

    case.redis.reply()

    wait_until(lambda: case.has_unreserved, "it is free")


def test_a_permit_whose_entry_was_lost_with_redis_is_free_again(case: Case):
    case.consumer.on_bell(BELL, False)
    case.await_pull(1)

    case.redis.fail()

    wait_until(lambda: case.has_unreserved, "it is free")


def test_no_more_is_asked_for_than_permits_without_an_entry_on_its_way(case: Case):
    case.handler.n_free = 3
    case.consumer.on_bell(BELL, False)
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
    case.consumer.on_bell(BELL, False)
    gevent.idle()

    assert case.redis.wanted == []
