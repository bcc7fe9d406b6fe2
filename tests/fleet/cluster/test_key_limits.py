"""Limits of API keys that servers share: the script alone, and accounts of several servers, on a real Redis."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
import msgspec
import pytest

from corosrv.base.errors import LimitReached, RedisRefused
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.contracts.settings import KeyEntry
from corosrv.fleet.cluster import key_limits
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.key_limits import CHARGE, KeyLimits
from corosrv.fleet.cluster.namespace import KeyNames
from corosrv.web.key_account import Clocks, KeyAccount
from tests.support.patched import run_patched
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import eventually, wait_until

DAY_MS = 86_400_000
NONE = (-1, -1, -1, -1)


@dataclass
class Totals:
    """The usage of a key by one server, as it tells the script."""

    requests: float = 0
    tokens: float = 0
    day_tokens: float = 0
    running: int = 0
    counted: tuple[float, float, float] = (0, 0, 0)
    believed: tuple[float, float, float] = (0, 0, 0)
    epoch: float = 0
    n_runs: int = 0


@dataclass
class Script:
    """Servers that run the script for one key."""

    client: RedisClient
    limits: tuple[int, int, int, int] = NONE
    servers: dict[str, Totals] = field(default_factory=dict)

    def run(self, server: str, *asks: tuple[int, int, int, int], run: int | None = None, lease: int = 60_000) -> Any:
        """Runs it, and returns what is used: requests, tokens, tokens of the day, answers elsewhere; and the grants."""
        totals = self.servers.setdefault(server, Totals())
        totals.n_runs += 1
        today = int(self.client.execute("TIME")[0]) * 1000 // DAY_MS
        said = (totals.requests, totals.tokens, totals.day_tokens, today, totals.running)
        words = msgspec.msgpack.encode((self.limits, said, totals.counted, totals.believed, asks, totals.epoch))
        number = totals.n_runs if run is None else run
        reply = msgspec.msgpack.decode(self.client.script(CHARGE).run(["key"], (server, number, lease, words)))
        _, requests, tokens, of_day, day, elsewhere, grants, totals.epoch = reply
        assert day == today
        return requests, tokens, of_day, elsewhere, list(grants)

    def grant(self, server: str, *ask: int) -> bool:
        """Asks for requests, tokens of a prompt and an answer, and answers; counts what is granted."""
        *_, (grant,) = self.run(server, ask)  # type: ignore[arg-type]
        if grant:
            totals = self.servers[server]
            totals.requests += ask[0]
            totals.tokens += ask[1] + ask[2]
            totals.day_tokens += ask[1] + ask[2]
            totals.running += ask[3]
        return bool(grant)


@pytest.fixture
def script(client: RedisClient) -> Script:
    return Script(client)


def test_the_sum_of_what_servers_are_granted_is_the_limit(script: Script):
    script.limits = (1, -1, -1, 3)
    assert [script.grant(server, 1, 0, 0, 0) for server in "ab"] == [True, False]
    script.limits = (-1, -1, -1, 3)
    assert [script.grant(server, 0, 0, 0, 1) for server in "abab"] == [True, True, True, False]


@pytest.mark.parametrize("limits", [(-1, 100, -1, -1), (-1, -1, 100, -1)], ids=["minute", "day"])
def test_a_prompt_is_granted_if_it_fits_and_its_answer_is_paid_for_later(script: Script, limits: Any):
    script.limits = limits
    assert not script.grant("a", 0, 101, 0, 0)
    assert script.grant("a", 0, 10, 500, 0)
    assert not script.grant("b", 0, 1, 0, 0)

    script.servers["a"].tokens -= 490
    script.servers["a"].day_tokens -= 490
    script.run("a")

    assert script.grant("b", 0, 70, 0, 0)
    assert not script.grant("a", 0, 30, 0, 0)


def test_what_was_used_comes_back_by_the_clock_of_redis(script: Script):
    script.limits = (6000, -1, -1, -1)  # one each 10 ms
    assert script.grant("a", 6000, 0, 0, 0)
    assert not script.grant("b", 200, 0, 0, 0)

    eventually(lambda: script.grant("b", 20, 0, 0, 0), what="requests that came back")


def test_one_run_serves_several_asks_in_their_order(script: Script):
    script.limits = (5, -1, -1, -1)
    *_, grants = script.run("a", (3, 0, 0, 0), (3, 0, 0, 0), (2, 0, 0, 0))
    assert grants == [1, 0, 1]


def test_a_run_that_is_repeated_or_lost_does_no_harm(script: Script):
    script.limits = (-1, 100, 100, -1)
    script.servers["a"] = Totals(tokens=40, day_tokens=40)

    first, second = script.run("a"), script.run("a")

    assert first[1] == 40
    assert second[1:3] == (pytest.approx(40, abs=1), 40)


def test_a_late_run_changes_nothing(script: Script):
    script.limits = (-1, -1, 100, -1)
    script.servers["a"] = Totals(day_tokens=40)
    script.run("a", run=2)
    script.servers["a"].day_tokens = 10

    for number in (1, 2):
        with pytest.raises(RedisRefused, match="STALE"):
            script.run("a", run=number)

    assert script.run("b")[2] == 40


def test_the_answers_of_a_server_that_says_nothing_are_over_after_its_lease(script: Script):
    script.limits = (-1, -1, -1, 2)
    assert script.grant("a", 0, 0, 0, 1)
    assert script.grant("b", 0, 0, 0, 1)
    assert not script.grant("b", 0, 0, 0, 1)

    time.sleep(0.1)
    script.run("b", lease=50)

    assert script.grant("b", 0, 0, 0, 1)
    assert script.client.execute("HEXISTS", "key", "a") == 0
    assert script.run("a")[3] == 2  # it comes again, and is counted again


def test_what_a_server_used_while_redis_forgot_it_is_counted(script: Script):
    script.limits = (-1, -1, 1000, -1)
    script.servers["a"] = Totals(day_tokens=70, counted=(0, 0, 50), believed=(0, 0, 170))
    script.servers["b"] = Totals(day_tokens=110, counted=(0, 0, 100), believed=(0, 0, 160))

    assert script.run("a")[2] == 170
    assert script.run("b")[2] == 180


def test_what_others_gave_back_while_a_server_was_idle_stays_given_back(script: Script):
    script.limits = (-1, 100, 100, -1)
    assert script.grant("a", 0, 90, 0, 0)
    b = script.servers["b"] = Totals()
    script.run("b")
    b.believed = (0, 90, 90)
    script.servers["a"].tokens = script.servers["a"].day_tokens = 10
    time.sleep(0.02)
    script.run("a", lease=10)
    assert script.client.execute("HEXISTS", "key", "b") == 0

    assert script.run("b")[2] == 10


def test_the_hash_goes_when_all_is_there_again(script: Script):
    script.limits = (60, -1, -1, -1)
    assert script.grant("a", 30, 0, 0, 0)

    assert 55_000 < script.client.execute("PTTL", "key") <= 60_000  # a minute at least

    assert script.grant("b", 30, 0, 0, 0)
    script.servers["a"].requests += 60  # as while Redis is away
    script.run("a")
    assert 115_000 < script.client.execute("PTTL", "key") <= 120_000

    script.limits = (60, -1, 1000, -1)
    assert script.grant("a", 0, 1, 0, 0)
    now = script.client.execute("TIME")
    until_midnight = DAY_MS - (int(now[0]) * 1000) % DAY_MS
    assert script.client.execute("PTTL", "key") == pytest.approx(max(until_midnight, 120_000), abs=2000)


def test_yesterday_s_tokens_and_records_of_the_future_or_of_others_do_not_count(script: Script):
    script.limits = (10, -1, 100, 2)
    now = int(script.client.execute("TIME")[0]) * 1000
    today, later = now // DAY_MS, now + DAY_MS
    pack = msgspec.msgpack.encode
    script.client.execute("HSET", "key", "used", pack((5, later, 0, later, 99, today - 1, 1)))
    script.client.execute(
        "HSET", "key", "ahead", pack((1, 0, 0, 0, today, 1, later)), "junk", "junk", "short", pack((1,))
    )
    script.client.execute("HSET", "key", "endless", pack((1, 0, 0, 0, today, float("nan"), now)))

    requests, _, of_day, elsewhere, _ = script.run("a")

    assert (requests, of_day, elsewhere) == (5, 0, 1)
    assert script.run("a", lease=1)[3] in (0, 1)
    time.sleep(0.01)
    assert script.run("a", lease=1)[3] == 0  # whoever was ahead is heard of no more
    for wrong in ("junk", pack((float("nan"),) * 7), pack((float("inf"),) * 7)):
        script.client.execute("HSET", "key", "used", wrong)
        assert script.run("a")[0] == 0


# Accounts of several servers, in a process whose sockets wait through gevent.


@dataclass
class Server:
    """One server with a key."""

    client: RedisClient
    limits: KeyLimits
    account: KeyAccount
    records: list[str]

    def admit(self, n: int) -> int:
        """Sends requests; returns how many were let in."""
        n_refused = 0
        for _ in range(n):
            try:
                self.account.admit("POST")
            except LimitReached:
                n_refused += 1
        return n - n_refused

    def bill(self, prompt: int = 1, answer: int = 1) -> Any:
        """Begins an answer; None if that is refused."""
        try:
            bill = self.account.open_bill(1, 1, answer)
        except LimitReached:
            return None
        try:
            bill.charge([prompt])
        except LimitReached:
            bill.drop()
            return None
        return bill


def end(bill: Any, n_generated: int) -> None:
    bill.add_end(Chunk(0, "", 0, Finish.STOP, prompt_tokens=1, prompt_ms=1.0))
    bill.close(n_generated)


class Records(logging.Handler):
    def __init__(self, records: list[str]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(f"{record.levelname} {record.getMessage()}")


@contextmanager
def server(url: str, name: str, clocks: Clocks | None = None, timeout: float = 1.0, **limits: int) -> Iterator[Server]:
    client = RedisClient(url, timeout=timeout)
    client.start()
    key_limits_of_server = KeyLimits(client, KeyNames("test"), name)
    account = KeyAccount(KeyEntry(name="alice", hash="0" * 64, **limits), clocks or Clocks())  # type: ignore[arg-type]
    account.share(key_limits_of_server)
    wait_until(lambda: client.health.is_up, "a link", 10)
    key_limits_of_server.start()
    records: list[str] = []
    handler = Records(records)
    logging.getLogger("corosrv.cluster").addHandler(handler)
    logging.getLogger("corosrv.cluster").setLevel(logging.INFO)
    try:
        yield Server(client, key_limits_of_server, account, records)
    finally:
        logging.getLogger("corosrv.cluster").removeHandler(handler)
        key_limits_of_server.close()
        client.close()


@contextmanager
def two(url: str, **limits: Any) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        yield stack.enter_context(server(url, "a", **limits)), stack.enter_context(server(url, "b", **limits))


def in_turns(url: str) -> list[int]:
    with two(url, requests_per_minute=20) as (a, b):
        return [sum(one.admit(5) for one in (a, b)) for _ in range(4)]


def side_by_side(url: str) -> tuple[int, int, float]:
    """Sends 400 requests at once to two servers; returns how many were let in, the commands, and seconds that took."""
    with two(url, requests_per_minute=50) as (a, b):
        before = _n_scripts(a)
        began = time.monotonic()
        asking = [gevent.spawn(one.admit, 1) for _ in range(200) for one in (a, b)]
        gevent.joinall(asking, timeout=20, raise_error=True)
        seconds = time.monotonic() - began
        return sum(one.value for one in asking), _n_scripts(a) - before, seconds


def _n_scripts(one: Server) -> int:
    text = one.client.execute("INFO", "commandstats").decode()
    lines = [line for line in text.splitlines() if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)


def test_two_servers_let_in_what_one_key_may_send(redis: RedisServer, client: RedisClient):
    assert run_patched(in_turns, redis.url) == [10, 10, 0, 0]


def test_requests_at_once_share_round_trips_and_never_pass_the_limit(redis: RedisServer, client: RedisClient):
    n_let_in, n_scripts, seconds = run_patched(side_by_side, redis.url)

    assert 50 <= n_let_in <= 50 + seconds * 50 / 60  # which come back meanwhile
    assert n_scripts < 50


def tokens(url: str) -> list[Any]:
    with two(url, tokens_per_minute=100, tokens_per_day=150) as (a, b):
        first, second = a.bill(10, 80), b.bill(10, 10)
        end(first, 9)  # of the 90 that were charged 10 are used
        wait_until(lambda: b.bill(10, 20) is not None, "what was given back", 5)
        shown = dict(b.account.headers())
        return [second is None, int(shown["x-ratelimit-remaining-tokens"])]


def test_what_one_server_gives_back_another_may_use(redis: RedisServer, client: RedisClient):
    is_refused, n_left = run_patched(tokens, redis.url)

    assert is_refused
    assert 60 <= n_left <= 70  # 10 of the first, 30 of the one that fits then, and what comes back meanwhile


def streams(url: str) -> list[Any]:
    with two(url, streams=2) as (a, b):
        bills = [a.bill(), b.bill(), a.bill(), b.bill()]
        end(bills[0], 1)
        wait_until(lambda: b.bill() is not None, "room", 5)
        return [bill is not None for bill in bills]


def test_answers_at_once_are_those_of_all_servers(redis: RedisServer, client: RedisClient):
    assert run_patched(streams, redis.url) == [True, True, False, False]


def dead_server(url: str) -> list[Any]:
    key_limits.LEASE_MS, key_limits.BEAT = 1500, 0.2  # a busy machine may miss some beats
    with two(url, streams=2) as (a, b):
        kept, lost = a.bill(), b.bill()
        b.limits._greenlet.kill()  # type: ignore[union-attr]
        began = time.monotonic()
        assert kept is not None
        assert lost is not None
        assert a.bill() is None
        wait_until(lambda: a.bill() is not None, "the lost server's answer to be over", 8)
        seconds = time.monotonic() - began
        return [seconds, a.bill() is None]


def test_a_dead_server_s_answers_are_over_after_the_lease(redis: RedisServer, client: RedisClient):
    seconds, is_full = run_patched(dead_server, redis.url)

    assert 0.5 < seconds < 8  # with the usual lease it would be 9
    assert is_full


def long_answer(url: str) -> bool:
    key_limits.LEASE_MS, key_limits.BEAT = 1500, 0.2  # a busy machine may miss some beats
    with two(url, streams=1) as (a, b):
        assert a.bill() is not None
        gevent.sleep(3.2)  # two leases pass
        return b.bill() is None


def test_an_answer_that_takes_several_leases_counts_to_its_end(redis: RedisServer, client: RedisClient):
    assert run_patched(long_answer, redis.url)


def paused() -> dict[str, Any]:
    """Asks while Redis is stopped in mid-air, and when it goes on."""
    with redis_server() as redis, server(redis.url, "a", requests_per_minute=600, timeout=2.0) as a:
        before = a.admit(100)
        redis.pause()
        try:
            times = []
            for _ in range(20):
                began = time.monotonic()
                assert a.admit(10) == 10
                times.append(time.monotonic() - began)
            wait_until(lambda: not a.client.health.is_up, "a lost link", 10)
            assert a.admit(10) == 10
        finally:
            redis.resume()
        wait_until(lambda: a.client.health.is_up and not a.limits._is_alone and not a.limits._due, "all to be told", 10)
        with server(redis.url, "b", requests_per_minute=600) as b:
            b.admit(1)
            left = int(dict(b.account.headers())["x-ratelimit-remaining-requests"])
        lines = [line for line in a.records if "limits of API keys" in line]
        return {
            "before": before,
            "slowest": max(times),
            "slow": sum(t > 0.2 for t in times),
            "left": left,
            "lines": lines,
        }


def test_no_request_waits_long_for_a_redis_that_hangs_and_what_was_used_meanwhile_is_told(redis: RedisServer):
    found = run_patched(paused)

    assert found["before"] == 100
    assert 0.2 < found["slowest"] < 1.5  # the first one, until Redis is known to be late, which is lost after 2 s
    assert found["slow"] == 1
    # 311 were used, and 10 come back each second; 499 are left where that is not told.
    assert 289 <= found["left"] < 480
    assert [line.split()[0] for line in found["lines"]] == ["WARNING", "INFO"]


def killed() -> dict[str, Any]:
    """Asks before, while and after Redis is dead; it comes back empty."""
    found: dict[str, Any] = {}
    with redis_server() as redis, two(redis.url, requests_per_minute=20, streams=2) as (a, b):
        kept = a.bill()
        found["before"] = a.admit(8), b.admit(8)
        redis.kill()
        wait_until(lambda: not a.client.health.is_up and not b.client.health.is_up, "a lost link", 10)
        began = time.monotonic()
        found["meanwhile"] = a.admit(20), b.admit(20)
        found["seconds"] = time.monotonic() - began
        redis.start()
        wait_until(
            lambda: not (a.limits._due or b.limits._due or a.limits._is_alone or b.limits._is_alone), "a link", 10
        )
        found["after"] = a.admit(20) + b.admit(20)
        found["answers"] = [b.bill() is not None, b.bill() is not None]
        found["lines"] = [line for line in b.records if "limits of API keys" in line]
        assert kept is not None
    return found


def test_while_redis_is_dead_each_server_goes_on_from_what_it_knew_and_all_of_it_counts_later(redis: RedisServer):
    found = run_patched(killed)

    assert found["before"] == [8, 8]
    a, b = found["meanwhile"]
    assert a in range(12, 16)  # it knew of its own 8, and nothing of the other's: it was asked before
    assert b in range(4, 8)  # it knew of all 16
    assert found["seconds"] < 5
    assert found["after"] == 0
    assert found["answers"] == [True, False]
    assert sorted(line.split()[0] for line in found["lines"]) == ["INFO"] * 2 + ["WARNING"] * 2  # of both servers


def wrong(url: str, kind: str) -> dict[str, Any]:
    with server(url, "a", requests_per_minute=20) as a:
        if kind == "type":
            a.client.execute("SET", a.account._share.key, "mine")  # type: ignore[union-attr]
        let_in = a.admit(30)
        lines = [line for line in a.records if "limits of an API key" in line]
        return {"let_in": let_in, "lines": lines}


def wrong_reply(url: str, reply: str) -> dict[str, Any]:
    key_limits.CHARGE = f"return {reply}"
    return wrong(url, "reply")


@pytest.mark.parametrize(
    "reply", ["'junk'", "5", "nil", "{1, 2}", "cmsgpack.pack({1, 2})", "cmsgpack.pack({1, 2, 3, 4, 5, 6, {}, 8})"]
)
def test_what_is_no_answer_leaves_the_limit_to_each_server_and_is_told_once(
    redis: RedisServer, client: RedisClient, reply: str
):
    found = run_patched(wrong_reply, redis.url, reply)

    assert found["let_in"] == 20
    assert len(found["lines"]) == 1


def test_a_key_in_redis_that_somebody_else_has_written_does_no_harm(redis: RedisServer, client: RedisClient):
    found = run_patched(wrong, redis.url, "type")

    assert found["let_in"] == 20
    assert "WRONGTYPE" in found["lines"][0]


def clocks_apart(url: str) -> dict[str, Any]:
    """Two servers, one a day and a half behind Redis, and one as much ahead; both clocks stand still."""
    wall = time.time()
    behind, ahead = Clocks(lambda: 5.0, lambda: wall - 130_000), Clocks(lambda: 9e6, lambda: wall + 130_000)
    limits = {"requests_per_minute": 10, "tokens_per_day": 100}
    with ExitStack() as stack:
        a = stack.enter_context(server(url, "a", behind, **limits))
        b = stack.enter_context(server(url, "b", ahead, **limits))
        n_requests = a.admit(6) + b.admit(6)
        bills = [a.bill(30, 20), b.bill(30, 20), a.bill(30, 20)]
        end(bills[0], 49)
        end(bills[1], 49)
        wait_until(lambda: not (a.limits._due or b.limits._due), "all to be told", 5)
        dates = {one.account.view()["today"]["date"] for one in (a, b)}
        last = a.bill(1, 1), b.bill(1, 1)
        return {
            "requests": n_requests,
            "bills": [bill is not None for bill in bills],
            "dates": sorted(dates),
            "last": [bill is not None for bill in last],
            "today": time.strftime("%Y-%m-%d", time.gmtime(wall)),
        }


def test_clocks_that_differ_change_nothing(redis: RedisServer, client: RedisClient):
    found = run_patched(clocks_apart, redis.url)

    assert found["requests"] == 10
    assert found["bills"] == [True, True, False]
    assert found["dates"] == [found["today"]]  # the day is that of Redis
    assert found["last"] == [False, False]


def given_up() -> list[float]:
    """Ends a request while Redis has it; returns what was taken for it in the end."""
    with redis_server() as redis, two(redis.url, tokens_per_day=1000, streams=5) as (a, b):
        share = a.account._share
        assert share is not None
        bill = a.account.open_bill(1, 1, 100)
        redis.pause()
        asking = gevent.spawn(bill.charge, [100])
        wait_until(lambda: share.is_busy, "a run", 5)
        asking.kill()
        bill.drop()
        redis.resume()
        wait_until(lambda: share.counted.tokens == 200, "a grant that comes too late", 5)
        wait_until(lambda: not (a.limits._due or share.is_busy), "all told", 5)
        assert b.bill(1, 1) is not None
        return [b.account.used()[2], b.account._elsewhere]


def test_a_request_whose_client_leaves_while_redis_is_asked_takes_nothing(redis: RedisServer):
    assert run_patched(given_up) == [2, 0]  # those of the other server's own answer


def trips(url: str) -> list[int]:
    """Counts the runs of the script for a request of each of these keys."""
    counts = []
    all_limits = {"requests_per_minute": 9, "tokens_per_minute": 99, "streams": 3}
    for limits, n_in_all in (({}, 0), ({"requests_per_minute": 9}, 1), (all_limits, 3)):
        with server(url, "a", **limits) as a:
            before = _n_scripts(a)
            a.account.admit("POST")
            bill = a.account.open_bill(1, 1, 1)
            bill.charge([1])
            counts.append(_n_scripts(a) - before)
            end(bill, 1)
            wait_until(lambda: _n_scripts(a) - before >= n_in_all, "the end that is told", 10)  # noqa: B023
            gevent.sleep(3 * key_limits.GATHERING)  # one too many would show
            counts.append(_n_scripts(a) - before)
    return counts


def test_a_request_asks_once_for_itself_and_once_for_its_tokens(redis: RedisServer, client: RedisClient):
    # Without limits; with requests alone; with all: there the end is told as well, which nobody waits for.
    assert run_patched(trips, redis.url) == [0, 0, 1, 1, 2, 3]


def flood(url: str) -> list[int]:
    with server(url, "a", requests_per_minute=5) as a:
        before = _n_scripts(a)
        return [a.admit(500), _n_scripts(a) - before]


def test_a_flood_of_refused_requests_asks_redis_nothing(redis: RedisServer, client: RedisClient):
    assert run_patched(flood, redis.url) == [5, 5]
