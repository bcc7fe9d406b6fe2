"""Two fronts in processes of their own share their calls through a real Redis."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corosrv.fleet.cluster.queue_names import Band, KeyNames, QueueNames
from tests.support.queue_front import FrontProcess, QueueFrontOptions
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import eventually

LONG = 300.0  # seconds that a handler sleeps which is not to end by itself

QUEUE = "model%3Asleep%3A:normal"

StartFront = Callable[..., FrontProcess]


QUICK = {"renew": 0.3, "claim_ms": 5000, "hold_ms": 1000}


@dataclass
class Trio:
    """Three fronts that stay: one without workers, and two with one slot each."""

    entry: FrontProcess
    left: FrontProcess
    right: FrontProcess
    starts: Path


@pytest.fixture(scope="module")
def trio(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    starts = tmp_path_factory.mktemp("trio") / "starts"
    starts.touch()
    with ExitStack() as stack:
        fronts = []
        for name, slots in (("entry", 0), ("left", 1), ("right", 1)):
            options = QueueFrontOptions(redis.url, name, str(starts), slots, ["sleep", "stream"], namespace="trio")
            fronts.append(FrontProcess(options))
            stack.callback(fronts[-1].kill)
        for front in fronts:
            front.await_event("ready")
        yield Trio(*fronts, starts)


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    path = tmp_path / "starts"
    path.touch()
    return path


@pytest.fixture
def start_front(redis: RedisServer, starts: Path) -> Iterator[StartFront]:
    """Starts fronts in a namespace of the test's own, and ends them."""
    with ExitStack() as stack:

        def start(name: str, server: RedisServer = redis, **options: Any) -> FrontProcess:
            words = {"namespace": str(abs(hash(starts))), **QUICK, **options}
            front = FrontProcess(QueueFrontOptions(url=server.url, name=name, starts=str(starts), **words))
            stack.callback(front.kill)
            if not front.options.is_late:
                front.await_event("ready")
            return front

        yield start


@contextmanager
def busy(front: FrontProcess, starts: Path, id: str) -> Iterator[None]:
    """Holds the one slot of a front."""
    front.submit(id, seconds=LONG)
    await_line(starts, "started", id)
    yield
    front.send("cancel", id=id)
    front.end_of(id)


def begun(starts: Path, event: str = "started") -> Counter[str]:
    """Counts how often the handler of each call did something."""
    lines = [line.split() for line in starts.read_text().splitlines()]
    return Counter(call for happened, call, _ in lines if happened == event)


def waiting(redis: RedisServer) -> int:
    """Counts the entries of priority 5 for the model `sleep`, of the test that is alone in this Redis."""
    names = [line for line in redis.command("KEYS", "*").split() if line.endswith(QUEUE)]
    return int(redis.command("XLEN", names[0]).strip().removeprefix(":")) if names else 0


def await_line(starts: Path, *words: str) -> None:
    """Waits until a handler has written these words."""
    line = " ".join(words)
    await_that(lambda: line in starts.read_text(), f"no line {line!r}")


def await_that(is_true: Callable[[], bool], words: str) -> None:
    ends_at = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < ends_at, words
        time.sleep(0.01)


def test_a_call_that_can_start_here_does_so_without_redis(trio: Trio, redis: RedisServer):
    for number in range(5):
        trio.left.submit(f"at-once-{number}", seconds=0)
        assert trio.left.end_of(f"at-once-{number}")["pieces"] == ["1 left"]


def test_calls_that_wait_run_in_whichever_front_is_free(trio: Trio):
    with busy(trio.left, trio.starts, "long-1"):
        for number in range(10):
            trio.left.submit(f"waits-{number}", seconds=0)

        assert [trio.left.end_of(f"waits-{number}")["pieces"] for number in range(10)] == [["1 right"]] * 10

    assert [begun(trio.starts)[f"waits-{number}"] for number in range(10)] == [1] * 10


def test_a_call_of_a_model_that_another_front_serves_runs_there(trio: Trio):
    trio.entry.submit("remote", seconds=0)

    assert trio.entry.end_of("remote")["pieces"][0] in ("1 left", "1 right")


def test_what_strangers_write_into_redis_is_dropped_in_words(start_front: StartFront, redis: RedisServer):
    entry, other = start_front("entry", slots=0), start_front("other", slots=1)
    names = QueueNames(KeyNames(entry.options.namespace), f"other-{other.process.pid}")
    for key in (names.own_stream, names.bell, names.stream("app", "model:sleep:", Band.NORMAL)):
        redis.command("XADD", key, "*", "x", "y")
        redis.command("XADD", key, "*", "c", "call", "k", "ack", "n", "many")

    entry.submit("call", seconds=0)

    assert entry.end_of("call")["pieces"] == ["1 other"]
    await_that(lambda: "entries of the shared queue were no calls" in other.log, "no line of log")
    assert "Traceback" not in other.log + entry.log


def test_a_large_body_goes_through(trio: Trio):
    trio.entry.submit("large", seconds=0, size=3_000_000)

    assert trio.entry.end_of("large")["pieces"][0].startswith("3000000 ")


def test_a_stream_comes_whole_however_slowly_it_is_read(trio: Trio):
    trio.entry.submit("slow", model="stream", seconds=0, pieces=60, bytes=100_000, reads_each=0.01)

    end = trio.entry.end_of("slow")
    assert (end["status"], len(end["pieces"])) == (200, 60)


def test_a_waiting_call_ends_at_its_deadline_and_never_runs(trio: Trio):
    with busy(trio.left, trio.starts, "long-2"), busy(trio.right, trio.starts, "long-3"):
        trio.entry.submit("overdue", seconds=0, timeout=0.2)
        assert trio.entry.end_of("overdue")["status"] == 504
    trio.entry.submit("after", seconds=0)

    assert trio.entry.end_of("after")["status"] == 200
    assert begun(trio.starts)["overdue"] == 0


def test_a_waiting_call_whose_client_leaves_never_runs(trio: Trio):
    with busy(trio.left, trio.starts, "long-4"), busy(trio.right, trio.starts, "long-5"):
        trio.entry.submit("left-alone", seconds=0)
        trio.entry.send("cancel", id="left-alone")
        assert trio.entry.end_of("left-alone")["status"] == 499
    trio.entry.submit("after-2", seconds=0)

    assert trio.entry.end_of("after-2")["status"] == 200
    assert begun(trio.starts)["left-alone"] == 0


def test_a_client_that_leaves_cancels_the_call_in_the_front_that_runs_it(trio: Trio):
    trio.entry.submit("runs", seconds=LONG)
    await_line(trio.starts, "started", "runs")

    trio.entry.send("cancel", id="runs")

    assert trio.entry.end_of("runs")["status"] == 499
    await_line(trio.starts, "cancelled", "runs")


def test_many_waiting_calls_need_few_connections(trio: Trio, redis: RedisServer):
    with busy(trio.left, trio.starts, "long-6"), busy(trio.right, trio.starts, "long-7"):
        for number in range(500):
            trio.entry.submit(f"many-{number}", seconds=0)
        await_that(lambda: trio.entry.count()["accepted"] == 500, "500 calls do not wait")

        clients = redis.command("CLIENT", "LIST").count(" name=")

        for number in range(500):
            trio.entry.send("cancel", id=f"many-{number}")

    assert clients < 3 * 10


def test_a_full_queue_is_a_429_with_retry_after(start_front: StartFront, starts: Path):
    front = start_front("a", max_queue=2)
    front.submit("long", seconds=LONG)
    await_line(starts, "started", "long")

    for number in range(3):
        front.submit(f"c{number}", seconds=0)

    refused = front.await_event("end", status=429)
    assert refused["retry_after"] >= 1


def test_calls_of_a_front_that_is_killed_end_as_their_handlers_allow(start_front: StartFront, starts: Path):
    models = ["sleep", "again", "stream"]
    front = start_front("a", slots=0, models=models)
    doomed = start_front("b", slots=3, models=models)
    heir = start_front("c", slots=3, models=models, is_late=True)
    front.submit("once", seconds=LONG)
    front.submit("twice", model="again", seconds=4)
    front.submit("streamed", model="stream", seconds=0, pieces=1000, pause=0.1)
    for id in ("once", "twice", "streamed"):
        await_line(starts, "started", id, "b")
    front.await_event("begun", id="streamed")
    front.submit("waiting", seconds=0)

    doomed.kill()
    heir.send("begin")

    assert front.end_of("waiting")["pieces"] == ["1 c"]
    assert front.end_of("once")["status"] == 502
    assert front.end_of("twice")["pieces"] == ["1 c"]
    end = front.end_of("streamed")  # neither begun again nor spliced
    assert (end["status"], {piece[-1] for piece in end["pieces"]}) == (502, {"b"})
    assert begun(starts) == Counter(once=1, twice=2, streamed=1, waiting=1)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with redis_server(appendonly="yes", appendfsync="always") as server:
        yield server


def test_without_redis_a_front_runs_what_it_can_and_refuses_the_rest(
    start_front: StartFront, own_redis: RedisServer, starts: Path
):
    front = start_front("a", own_redis)
    remote = start_front("b", own_redis, slots=0)
    strict = start_front("c", own_redis, falls_back=False, namespace="strict")
    front.submit("running", seconds=1)
    await_line(starts, "started", "running")

    own_redis.kill()
    remote.submit("refused", seconds=0)
    refused = remote.end_of("refused", 20)
    front.submit("local", seconds=0)

    assert (refused["status"], refused["retry_after"]) == (503, 1)
    assert front.end_of("running")["pieces"] == ["1 a"]
    assert front.end_of("local")["pieces"] == ["1 a"]
    # Each front notices by itself, and runs what comes before that.
    numbers = itertools.count()

    def is_refused() -> bool:
        id = f"strict-{next(numbers)}"
        strict.submit(id, seconds=0)
        return strict.end_of(id)["status"] == 503

    eventually(is_refused, 20, "a refusal")


def test_calls_that_wait_are_still_there_after_redis_was_killed(
    start_front: StartFront, own_redis: RedisServer, starts: Path
):
    front = start_front("a", own_redis)
    front.submit("running", seconds=LONG)
    await_line(starts, "started", "running")
    for number in range(5):
        front.submit(f"c{number}", seconds=0)
    await_that(lambda: waiting(own_redis) == 5, "five calls do not wait")

    own_redis.kill()
    own_redis.start()
    front.send("cancel", id="running")

    assert [front.end_of(f"c{number}")["status"] for number in range(5)] == [200] * 5
    assert max(begun(starts).values()) == 1


def test_calls_that_redis_has_lost_are_a_503(start_front: StartFront, starts: Path):
    with redis_server() as forgetful:  # without an append-only file
        front = start_front("a", forgetful)
        front.submit("running", seconds=LONG)
        await_line(starts, "started", "running")
        front.submit("lost", seconds=0)
        await_that(lambda: waiting(forgetful) == 1, "the call does not wait")

        forgetful.kill()
        forgetful.start()

        assert front.end_of("lost")["status"] == 503
        assert "running" not in front.ends
        front.send("cancel", id="running")
        assert front.end_of("running")["status"] == 499


def test_a_redis_whose_memory_is_full_refuses_what_is_to_wait_and_loses_nothing(start_front: StartFront, starts: Path):
    with redis_server() as small:
        front = start_front("a", small)
        front.submit("running", seconds=LONG)
        await_line(starts, "started", "running")
        front.submit("waits", seconds=0)
        await_that(lambda: waiting(small) == 1, "the call does not wait")

        small.command("CONFIG", "SET", "maxmemory", "1")
        front.submit("refused", seconds=0)
        refused = front.end_of("refused")
        front.send("cancel", id="running")  # its permit is free: what waits cannot be marked as begun, though
        front.end_of("running")
        small.command("CONFIG", "SET", "maxmemory", "0")

        assert (refused["status"], refused["retry_after"]) == (503, 1)
        assert front.end_of("waits")["status"] == 200
        assert begun(starts)["waits"] == 1
