"""API keys with limits at two real servers that share a real Redis, which may be lost."""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from corosrv.contracts.settings import add_key
from corosrv.fleet.cluster.key_limits import LEASE_MS
from tests.serve.server import SERVE, START_SECONDS, Process, Server, Servers, free_port, servers
from tests.serve.test_grpc_keys import asked, call, refusal
from tests.serve.test_keys import ask, usage
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import eventually

MODEL = "synthetic:?tokens_per_s=200"
COMPLETION = {"prompt": "hi", "max_tokens": 1}

_numbers = itertools.count()


@dataclass
class Pair:
    """Two servers with one Redis and one file of keys."""

    redis: RedisServer
    a: Server
    b: Server
    file: str

    def key(self, **limits: Any) -> str:
        return add_key(self.file, f"key of test {next(_numbers)}", limits)

    def wait_up(self) -> None:
        """Waits until both know that Redis answers."""
        for one in (self.a, self.b):
            eventually(lambda one=one: "corosrv_redis_up 1.0" in metrics(one, "plain"), what="a link")


@contextmanager
def pair(folder: Path, cache: Path, **settings: Any) -> Iterator[Pair]:
    file = str(folder / "keys.toml")
    add_key(file, "root", {"admin": True})
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        start = stack.enter_context(servers(folder, cache))
        options: dict[str, Any] = {"model": MODEL, "api_keys": "plain", "api_keys_file": file, "redis_url": redis.url}
        a, b = (start.start(**options | settings) for _ in range(2))
        yield Pair(redis, a, b, file)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("pair"), tmp_path_factory.mktemp("pair-cache"), grpc_port=0) as found:
        yield found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Pair]:
    """Two servers of this test's own, and their Redis."""
    with pair(tmp_path, tmp_path) as found:
        yield found


def complete(at: Server, key: str, **fields: Any) -> Any:
    return ask(at, "POST", "/v1/completions", key, COMPLETION | fields)


def at_once(n: int, send: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(send, range(n)))


def test_two_servers_let_in_what_the_key_may_send(two: Pair) -> None:
    key = two.key(requests_per_minute=20)

    began = time.monotonic()
    answers = at_once(60, lambda n: complete((two.a, two.b)[n % 2], key))
    seconds = time.monotonic() - began

    statuses = [answer.status_code for answer in answers]
    assert 20 <= statuses.count(200) <= 20 + seconds / 3 + 1  # one comes back every 3 s
    assert statuses.count(429) == 60 - statuses.count(200)
    assert min(usage(one, key)["total"]["requests"] for one in (two.a, two.b)) > 0
    assert answers[-1].headers["x-ratelimit-remaining-requests"] == "0"


def test_two_servers_compute_the_tokens_that_the_key_may_use_and_settle_them_together(two: Pair) -> None:
    key = two.key(tokens_per_day=1000)

    first = complete(two.a, key, max_tokens=900, stop=["."])
    used = first.json()["usage"]["total_tokens"]
    assert used < 400  # so that most of what was charged is given back

    eventually(lambda: complete(two.b, key, max_tokens=500).status_code == 200, what="what the other has given back")
    refused = complete(two.a, key, max_tokens=500)

    assert refused.status_code == 429
    assert "1000 tokens a day" in refused.json()["error"]["message"]


def test_calls_over_grpc_share_the_limits_too(two: Pair) -> None:
    key = two.key(requests_per_minute=2)

    assert call(two.a, key, sent=asked("synthetic")).model_name == "synthetic"
    assert complete(two.b, key).status_code == 200

    assert "2 requests a minute" in refusal(two.b, key, sent=asked("synthetic")).details()


@contextmanager
def stream(at: Server, key: str) -> Iterator[None]:
    """Runs a long answer meanwhile."""
    with (
        at.client(key) as client,
        client.completions.create(model="synthetic", prompt="hi", max_tokens=4000, stream=True) as events,
    ):
        next(iter(events))
        yield


def test_answers_at_once_are_those_of_both_servers(two: Pair) -> None:
    key = two.key(streams=1)

    with stream(two.a, key):
        refused = complete(two.b, key)

    assert refused.status_code == 429
    assert "1 answers made at once" in refused.json()["error"]["message"]
    eventually(lambda: complete(two.b, key).status_code == 200, 10, "room, long before the stream would be over")


def account(key: str) -> bytes:
    """The end of the name that Redis knows what a key has used by."""
    hashed = hashlib.sha256(key.encode()).hexdigest()
    return b":limits:" + hashlib.blake2b(hashed.encode(), digest_size=20).hexdigest().encode()


def test_a_key_without_limits_asks_redis_nothing(two: Pair) -> None:
    free, limited = two.key(), two.key(requests_per_minute=5)
    with two.redis.monitor() as seen:
        assert complete(two.a, free).status_code == complete(two.a, "plain").status_code == 200
        assert complete(two.a, limited).status_code == 200
        eventually(lambda: account(limited) in seen, what="a run for a key with limits")

    # What the keys of other tests have used may still be told.
    assert account(free) not in seen
    assert account("plain") not in seen


def test_the_answers_of_a_killed_server_are_over_within_the_lease(own: Pair) -> None:
    key = own.key(streams=1)
    began = threading.Event()

    def read() -> None:
        with (
            own.a.client(key) as client,
            client.completions.create(model="synthetic", prompt="hi", max_tokens=4000, stream=True) as events,
        ):
            for _ in events:
                began.set()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert began.wait(20)
        assert complete(own.b, key).status_code == 429
        (worker,) = own.a.workers()
        Process(worker).kill()
        killed = time.monotonic()
        eventually(lambda: complete(own.b, key).status_code == 200, LEASE_MS / 1000 + 12, "the end of its answer")
        assert time.monotonic() - killed <= LEASE_MS / 1000 + 10
        reading.exception(20)


def test_a_redis_that_dies_and_comes_back_refuses_nobody_and_loses_no_count(own: Pair) -> None:
    key, other = own.key(requests_per_minute=30), own.key(requests_per_minute=10_000)
    first = time.monotonic()
    assert [complete(one, key).status_code for one in (own.a, own.b) * 5] == [200] * 10
    times: list[float] = []
    statuses: list[int] = []
    is_over = threading.Event()

    def keep_asking() -> None:
        while not is_over.is_set():
            began = time.monotonic()
            statuses.append(complete(own.a, other).status_code)
            times.append(time.monotonic() - began)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(keep_asking)
        own.redis.kill()
        eventually(lambda: all("Redis is away" in one.log for one in (own.a, own.b)), what="a lost link")
        meanwhile = [complete(one, key).status_code for one in (own.a, own.b) * 5]
        own.redis.start()
        own.wait_up()
        is_over.set()
        asking.result(20)

    eventually(lambda: all("are shared again" in one.log for one in (own.a, own.b)), what="a shared limit")
    later = [complete(one, key).status_code for one in (own.a, own.b) * 10]
    seconds = time.monotonic() - first
    assert meanwhile == [200] * 10
    assert set(statuses) == {200}
    assert max(times) < 5
    assert 10 <= later.count(200) <= 11 + seconds / 2  # 20 of 30 were used, and one comes back every 2 s
    for one in (own.a, own.b):
        assert one.log.count("kept by each server for itself while Redis is away") == 1


def test_several_workers_share_what_comes_over_grpc(start: Servers, tmp_path: Path) -> None:
    file, port = str(tmp_path / "keys.toml"), free_port()
    key = add_key(file, "alice", {"requests_per_minute": 10})
    with redis_server() as redis:
        settings: dict[str, Any] = {"model": MODEL, "api_keys_file": file, "redis_url": redis.url, "grpc_port": port}
        server = start.start(*SERVE, "-w", "2", **settings, run_dir=tmp_path)
        eventually(lambda: server.log.count("gRPC listens on") == 2, START_SECONDS, "two gRPC processes")
        codes = []
        began = time.monotonic()
        for _ in range(30):
            try:
                call(server, key, sent=asked("synthetic"))
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())  # type: ignore[attr-defined]
        seconds = time.monotonic() - began
        by_process = set(re.findall(r'corosrv_grpc_calls_total\{code="\w+",front="(\d+)"', metrics(server, key)))

    assert 10 <= codes.count(grpc.StatusCode.OK) <= 11 + seconds / 6  # one comes back every 6 s
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 30 - codes.count(grpc.StatusCode.OK)
    assert len(by_process) == 2  # both took some, let in or not


def metrics(at: Server, key: str) -> str:
    return str(ask(at, "GET", "/metrics", key).text)
