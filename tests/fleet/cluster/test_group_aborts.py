"""Aborts of groups that several fronts share, through a real Redis, in processes whose sockets wait through gevent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import msgspec

from corosrv.fleet.cluster import group_aborts
from corosrv.fleet.cluster.connection import N_CONNECTIONS, RedisClient
from corosrv.fleet.cluster.group_aborts import GroupAbortCount, GroupAborts
from corosrv.fleet.cluster.namespace import KeyNames
from corosrv.web.groups import GroupTable
from tests.support.patched import run_patched
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

NAMES = KeyNames("test")
ASKING = NAMES.name("groups", "abort")


class AbortingFront:
    """One front of several: the groups that run here, and its link to the others."""

    def __init__(self, url: str, id: str) -> None:
        self.groups = GroupTable()
        self.client = RedisClient(url, timeout=5)
        self.aborts = GroupAborts(self.client, NAMES, id, self.groups.abort)
        self.cancelled: list[str] = []

    def join(self, name: str, caller: str = "me") -> None:
        self.groups.join(caller, name).bind(lambda: self.cancelled.append(name))

    def abort_elsewhere(self, name: str, keeps_partial: bool = False) -> int:
        return self.aborts.abort_elsewhere("me", name, keeps_partial=keeps_partial)


def n_listening(client: RedisClient) -> int:
    return int(client.execute("PUBSUB", "NUMSUB", ASKING)[1])


@contextmanager
def fronts(url: str, *ids: str) -> Iterator[list[AbortingFront]]:
    """Starts fronts, and yields them when all listen; waits at the end until none does."""
    fronts = [AbortingFront(url, id) for id in ids]
    watching = RedisClient(url, timeout=5)
    before = n_listening(watching)
    for front in fronts:
        front.aborts.start()
    wait_until(lambda: n_listening(watching) == before + len(fronts), "all listen")
    yield fronts
    for front in fronts:
        front.aborts.close()
        front.client.close()
    wait_until(lambda: n_listening(watching) == before, "none listens")
    watching.close()


@contextmanager
def two_fronts(url: str) -> Iterator[list[AbortingFront]]:
    with fronts(url, "here", "there") as both:
        yield both


def abort_of_two_callers(url: str) -> list[Any]:
    with two_fronts(url) as (here, there):
        here.join("a")
        for name in ("a", "a", "b"):
            there.join(name)
        there.join("a", caller="you")

        return [here.abort_elsewhere("a"), here.cancelled, there.cancelled]


def test_an_abort_ends_the_callers_requests_in_other_fronts_and_counts_them(redis: RedisServer):
    n_requests, cancelled_here, cancelled_there = run_patched(abort_of_two_callers, redis.url)

    assert (n_requests, cancelled_there) == (2, ["a", "a"])
    assert cancelled_here == []  # whoever asks has ended those of its own front


def abort_in_three_fronts(url: str) -> list[int]:
    with fronts(url, "here", "there", "elsewhere") as (here, there, elsewhere):
        for front in (there, there, elsewhere):
            front.join("a")

        return [here.abort_elsewhere("a"), here.aborts.n_asking]


def test_the_requests_of_all_other_fronts_are_counted(redis: RedisServer):
    assert run_patched(abort_in_three_fronts, redis.url) == [3, 0]


def partial_aborts(url: str) -> list[bool]:
    with two_fronts(url) as (here, there):
        members = [there.groups.join("me", name) for name in ("whole", "partial")]
        here.abort_elsewhere("whole", keeps_partial=False)
        here.abort_elsewhere("partial", keeps_partial=True)

        return [member.is_aborted and member.keeps_partial for member in members]


def test_it_says_whether_partial_answers_are_kept(redis: RedisServer):
    assert run_patched(partial_aborts, redis.url) == [False, True]


def aborts_at_once(url: str) -> list[int]:
    with two_fronts(url) as (here, there):
        for n in range(8):
            for _ in range(n):
                there.join(f"group {n}")

        asking = [gevent.spawn(here.abort_elsewhere, f"group {n}") for n in range(8)]
        return [greenlet.get(timeout=30) for greenlet in asking]


def test_several_aborts_at_once_are_counted_apart(redis: RedisServer):
    assert run_patched(aborts_at_once, redis.url) == list(range(8))


def abort_beside_a_silent_front(url: str) -> int:
    group_aborts.LONGEST_WAIT = 1.0
    with two_fronts(url) as (here, there):
        there.join("a")
        silent = here.client.open_blocking(5)
        silent.send("SUBSCRIBE", ASKING)
        wait_until(lambda: n_listening(here.client) == 3, "it listens")
        here.abort_elsewhere("a")
        wait_until(lambda: there.cancelled, "the other one has heard it")
        silent.close()
        return len(there.cancelled)


def test_a_front_that_does_not_answer_ends_the_wait_of_nobody(own_redis: RedisServer):
    assert run_patched(abort_beside_a_silent_front, own_redis.url) == 1


def abort_while_commands_wait(url: str) -> list[str]:
    with two_fronts(url) as (here, there):
        for name in ("a", "b"):
            there.join(name)
        busy = [gevent.spawn(there.client.execute, "BLPOP", "never", 4) for _ in range(N_CONNECTIONS)]
        wait_until(lambda: b"blocked_clients:4" in here.client.execute("INFO", "clients"), "no connection is free")
        asking = [gevent.spawn(here.abort_elsewhere, name) for name in ("a", "b")]
        gevent.wait([gevent.spawn(wait_until, lambda: len(there.cancelled) == 2), *busy], count=1)
        cancelled = list(there.cancelled)
        gevent.joinall([*busy, *asking])
        return cancelled


def test_a_front_that_cannot_answer_yet_aborts_the_next_group_meanwhile(own_redis: RedisServer):
    assert run_patched(abort_while_commands_wait, own_redis.url) == ["a", "b"]


def abort_at_a_front_that_has_lost_redis(url: str) -> list[Any]:
    group_aborts.LONGEST_WAIT = 1.0
    failures: list[Any] = []
    gevent.get_hub().handle_error = lambda context, *error: failures.append(str(error))
    with two_fronts(url) as (here, there):
        there.join("a")
        there.client.health.succeed()
        there.client.health.fail("it was lost")
        n_requests = here.abort_elsewhere("a")
        return [n_requests, there.cancelled, failures]


def test_a_front_that_cannot_answer_aborts_all_the_same(own_redis: RedisServer):
    assert run_patched(abort_at_a_front_that_has_lost_redis, own_redis.url) == [0, ["a"], []]


def late_answer(url: str) -> list[Any]:
    messages: list[str] = []
    log = logging.getLogger("corosrv.cluster")
    log.addFilter(lambda record: messages.append(record.getMessage()))  # type: ignore[func-returns-value, arg-type]
    with two_fronts(url) as (here, there):
        here.abort_elsewhere("a")
        late = msgspec.msgpack.encode(GroupAbortCount(1, 5))
        here.client.execute("PUBLISH", NAMES.name("groups", "aborted", "here"), late)
        there.join("b")
        return [here.abort_elsewhere("b"), messages]


def test_an_answer_that_comes_too_late_counts_for_nothing(redis: RedisServer):
    assert run_patched(late_answer, redis.url) == [1, []]


def abort_after_garbage(url: str) -> int:
    with two_fronts(url) as (here, there):
        there.join("a")
        here.client.execute("PUBLISH", ASKING, b"\xc1")
        return here.abort_elsewhere("a")


def test_what_is_no_message_does_not_end_the_listening(redis: RedisServer):
    assert run_patched(abort_after_garbage, redis.url) == 1


def abort_after_a_loss(url: str) -> int:
    with two_fronts(url) as (here, there):
        there.join("a")
        here.client.execute("CLIENT", "KILL", "TYPE", "pubsub")
        # With a ping before, which nobody else sends here: Redis counts as away while a connection to it was lost.
        wait_until(lambda: here.client.ping() and n_listening(here.client) == 2, "both listen again")
        return here.abort_elsewhere("a")


def test_a_front_that_lost_its_connection_listens_again(own_redis: RedisServer):
    assert run_patched(abort_after_a_loss, own_redis.url) == 1


def abort_without_redis(url: str) -> int:
    return AbortingFront(url, "here").abort_elsewhere("a")


def test_without_redis_there_is_nobody_to_ask(own_redis: RedisServer):
    own_redis.kill()

    assert run_patched(abort_without_redis, own_redis.url) == 0
