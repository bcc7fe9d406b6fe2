"""Two real fronts that share the permits of two upstreams through a real Redis, which may be lost."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from corosrv.fleet.cluster.namespace import BEAT, LEASE_MS
from tests.serve.fronts import ServerFront, front
from tests.serve.server import Servers, servers
from tests.serve.wire import Answer, events
from tests.support.redis_server import RedisServer, redis_server
from tests.support.scripted_upstream import DONE, Handler, ScriptedUpstream, echo, scripted
from tests.support.waiting import eventually

PATH = "/v1/completions"
PERMITS = 2  # of each upstream
TEXT = "a-word-of-an-answer"
SECRET = "a-word-of-a-prompt"


@dataclass
class SharedFronts:
    """Holds two fronts of the same two upstreams."""

    redis: RedisServer
    a: ServerFront
    b: ServerFront
    upstreams: list[ScriptedUpstream]
    clients: ThreadPoolExecutor

    def ask(self, at: ServerFront, prompt: str = SECRET, priority: int = 5, **fields: object) -> Future[Answer]:
        return self.clients.submit(self._ask, at, {"model": "m", "prompt": prompt, **fields}, priority)

    def _ask(self, at: ServerFront, body: dict[str, object], priority: int) -> Answer:
        with at.server.connect(timeout=90) as connection:
            return connection.post(body, PATH, {"X-Priority": str(priority)})

    @property
    def n_running(self) -> int:
        return sum(upstream.n_running for upstream in self.upstreams)

    def wait_told(self) -> None:
        """Waits until what waits at `b` is known to `a`, by two more runs of the script of each: the first may run."""
        for at in (self.b, self.a):
            key = f"corosrv:{{default}}:permits:run:{at.manage('GET', '/v1/fronts')['id']}"
            n_runs = self._number(key)
            eventually(lambda key=key, n_runs=n_runs: self._number(key) >= n_runs + 2, what="two runs")

    def _number(self, key: str) -> int:
        return int(self.redis.command("GET", key).split()[1])

    def held(self, at: ServerFront) -> int:
        """Returns how many permits a front holds."""
        found = at.server.metrics().items()
        return int(sum(value for name, value in found if "upstream_permits_held" in name))


class Held:
    """Holds answers back until a test lets some go."""

    def __init__(self) -> None:
        self._turns = threading.Semaphore(0)
        self.order: list[str] = []

    def __call__(self, handler: Handler) -> None:
        self.order.append(json.loads(handler.body)["prompt"])
        assert self._turns.acquire(timeout=90)
        echo(handler)

    def release(self, n: int = 1) -> None:
        self._turns.release(n)


def nap(handler: Handler) -> None:
    """Answers after a while, as a whole or as a stream."""
    if not json.loads(handler.body).get("stream"):
        time.sleep(0.02)
        handler.answer(200, {"choices": [{"text": TEXT}]})
        return
    handler.begin_stream()
    for number in range(40):
        handler.chunk(b'data: {"n": %d, "text": "%s"}\n\n' % (number, TEXT.encode()))
        time.sleep(0.1)
    handler.chunk(DONE)
    handler.end_stream()


@contextmanager
def shared_fronts(folder: Path, cache: Path) -> Iterator[SharedFronts]:
    with ExitStack() as stack:
        clients = stack.enter_context(ThreadPoolExecutor(64))
        redis = stack.enter_context(redis_server())
        upstreams = [stack.enter_context(scripted()) for _ in range(2)]
        started = stack.enter_context(servers(folder, cache))
        urls = [f"{upstream.url}?concurrency={PERMITS}" for upstream in upstreams]
        pair = [stack.enter_context(front(started, *urls, redis_url=redis.url)) for _ in range(2)]
        fronts = SharedFronts(redis, *pair, upstreams, clients)
        rest(fronts)
        yield fronts


def rest(fronts: SharedFronts) -> None:
    """Waits until both fronts have their even parts."""
    for one in (fronts.a, fronts.b):
        for number in range(2):
            one.wait_state("ready", number)
    eventually(lambda: fronts.held(fronts.a) == fronts.held(fronts.b) == PERMITS, what="even parts")


@pytest.fixture(scope="module")
def _kept(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[SharedFronts]:
    with shared_fronts(tmp_path_factory.mktemp("fronts"), cache) as fronts:
        yield fronts


@pytest.fixture
def fronts(_kept: SharedFronts) -> SharedFronts:
    """Two fronts at rest, whose upstreams echo and have seen nothing."""
    _reset(_kept)
    rest(_kept)
    return _kept


def _reset(fronts: SharedFronts) -> None:
    for upstream in fronts.upstreams:
        upstream.behaviour = echo
        with upstream.lock:
            upstream.requests.clear()
            upstream.most_running = upstream.n_running


@pytest.fixture
def mortal_fronts(tmp_path: Path, cache: Path) -> Iterator[SharedFronts]:
    """Two fronts of which a test may kill one."""
    with shared_fronts(tmp_path, cache) as fronts:
        yield fronts


def hold(fronts: SharedFronts) -> Held:
    held = Held()
    for upstream in fronts.upstreams:
        upstream.behaviour = held
    return held


def occupy(fronts: SharedFronts, held: Held, at: ServerFront) -> list[Future[Answer]]:
    """Has one front run as many calls as all upstreams may."""
    running = [fronts.ask(at, "first") for _ in range(2 * PERMITS)]
    eventually(lambda: fronts.n_running == 2 * PERMITS, what="all permits")
    return running


def test_one_front_may_use_all_permits_and_both_together_no_more(fronts: SharedFronts):
    held = hold(fronts)
    running = occupy(fronts, held, fronts.a)

    waiting = [fronts.ask(fronts.b, f"{number}") for number in range(2)]
    fronts.b.wait_queued(2)

    assert [upstream.most_running for upstream in fronts.upstreams] == [PERMITS] * 2
    held.release(100)
    assert [future.result(60).status for future in running + waiting] == [200] * (2 * PERMITS + 2)


def test_a_more_urgent_call_of_another_front_goes_first(fronts: SharedFronts):
    held = hold(fronts)
    futures = occupy(fronts, held, fronts.a)
    futures += [fronts.ask(fronts.a, "usual") for _ in range(3)]
    fronts.a.wait_queued(3)
    futures.append(fronts.ask(fronts.b, "urgent", priority=1))
    fronts.b.wait_queued(1)
    fronts.wait_told()

    held.release()

    eventually(lambda: len(held.order) == 2 * PERMITS + 1, what="the next call")
    assert held.order[-1] == "urgent"
    held.release(100)
    assert {future.result(60).status for future in futures} == {200}


@contextmanager
def load(fronts: SharedFronts, n_clients: int = 8) -> Iterator[Counter[int]]:
    """Has clients ask each front all the time; yields the statuses of their answers.

    Fails if an upstream has run more than its permits.
    """
    is_over, statuses, lock = threading.Event(), Counter[int](), threading.Lock()

    def ask(at: ServerFront) -> None:
        with at.server.connect(timeout=90) as connection:
            while not is_over.is_set():
                status = connection.post({"model": "m", "prompt": SECRET}, PATH).status
                with lock:
                    statuses[status] += 1

    asking = [fronts.clients.submit(ask, at) for at in (fronts.a, fronts.b) for _ in range(n_clients)]
    try:
        yield statuses
    finally:
        is_over.set()
        for one in asking:
            one.result(90)
    assert max(upstream.most_running for upstream in fronts.upstreams) <= PERMITS


def test_under_overload_no_word_of_a_call_passes_through_redis(fronts: SharedFronts):
    for upstream in fronts.upstreams:
        upstream.behaviour = nap

    with fronts.redis.monitor() as seen, load(fronts) as statuses:
        stream = fronts.ask(fronts.a, stream=True)
        eventually(lambda: statuses[200] > 50 and stream.done(), what="calls of both")

    assert TEXT in stream.result(60).body.decode()
    assert b"evalsha" in seen.lower()
    assert TEXT.encode() not in seen
    assert SECRET.encode() not in seen
    assert statuses.keys() == {200}


def lose(fronts: SharedFronts, fault: str) -> None:
    redis = fronts.redis
    if fault == "flushed":
        redis.command("FLUSHALL")
    elif fault == "replaced":  # by an empty one: nothing is on its disk
        redis.kill()
        redis.start()
    elif fault == "killed":
        redis.kill()
        time.sleep(2)
        redis.start()
    else:
        redis.pause()
        time.sleep(22 if fault == "stopped for long" else 4)
        redis.resume()


@pytest.mark.parametrize(
    "fault", ["flushed", "replaced", "killed", "stopped", pytest.param("stopped for long", marks=pytest.mark.slow)]
)
def test_whatever_becomes_of_redis_streams_are_whole_and_no_upstream_runs_more(fronts: SharedFronts, fault: str):
    for upstream in fronts.upstreams:
        upstream.behaviour = nap

    with load(fronts) as statuses:
        streams = [fronts.ask(at, stream=True) for at in (fronts.a, fronts.b)]
        eventually(lambda: statuses[200] > 20, what="calls before")
        lose(fronts, fault)
        before = statuses[200]
        eventually(lambda: statuses[200] > before + 20 and all(stream.done() for stream in streams), what="calls after")

    for stream in streams:
        assert [event.get("n") for event in events(stream.result(1).body) if isinstance(event, dict)] == [*range(40)]
    assert statuses.keys() == {200}


@pytest.mark.slow
def test_a_front_that_is_killed_gives_its_permits_back_within_its_lease(mortal_fronts: SharedFronts):
    fronts = mortal_fronts
    held = hold(fronts)
    lost = occupy(fronts, held, fronts.b)
    waiting = [fronts.ask(fronts.b, "of the dead") for _ in range(3)]
    fronts.b.wait_queued(3)

    fronts.b.server.worker.kill()
    fronts.b.server.stop()  # which would start another
    killed_at = time.monotonic()
    kept = [fronts.ask(fronts.a, "kept") for _ in range(2 * PERMITS)]
    held.release(100)

    assert [future.result(60).status for future in kept] == [200] * 2 * PERMITS
    assert time.monotonic() - killed_at < LEASE_MS / 1000 + BEAT + 20
    assert held.order.count("of the dead") == 0
    for future in lost + waiting:
        assert future.exception(60) is not None


def test_a_new_front_takes_its_part_and_an_old_one_leaves_its(mortal_fronts: SharedFronts):
    fronts = mortal_fronts

    fronts.b.server.stop()

    eventually(lambda: fronts.held(fronts.a) == 2 * PERMITS, what="all permits")


def test_a_server_starts_while_redis_is_away_and_joins_it_when_it_comes(start: Servers):
    with scripted(nap) as upstream, redis_server() as redis:
        redis.kill()
        with front(start, f"{upstream.url}?concurrency=2", redis_url=redis.url) as alone:
            alone.wait_state("ready")
            assert alone.server.get("/health")[1]["redis"] == "alone"
            with alone.server.connect() as connection:
                assert connection.post({"model": "m", "prompt": "p"}, PATH).status == 200

            redis.start()

            eventually(lambda: alone.server.get("/health")[1]["redis"] == "up", what="the link")
            eventually(lambda: redis.command("KEYS", "*permits*").count("permits") > 1, what="its permits in Redis")
            with alone.server.connect() as connection:
                assert connection.post({"model": "m", "prompt": "p"}, PATH).status == 200
