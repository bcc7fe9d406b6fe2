"""Two real fronts of upstreams that share their queue through a real Redis: what waits at one runs at the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serve.fronts import ServerFront, front
from tests.serve.server import servers
from tests.serve.wire import Answer, events
from tests.support.redis_server import redis_server
from tests.support.scripted_upstream import Handler, ScriptedUpstream, echo, scripted
from tests.support.waiting import eventually

PATH = "/v1/completions"


@dataclass
class SharedFronts:
    """Holds two fronts, each with an upstream of its own that serves the same model, one call at a time."""

    here: ServerFront
    there: ServerFront
    upstream_here: ScriptedUpstream
    upstream_there: ScriptedUpstream
    clients: ThreadPoolExecutor

    def ask(self, prompt: str, **fields: object) -> Future[Answer]:
        """Asks the first front."""
        return self.clients.submit(self._ask, {"model": "m", "prompt": prompt, **fields})

    def _ask(self, body: dict[str, object]) -> Answer:
        with self.here.server.connect(timeout=90) as connection:
            return connection.post(body, PATH, {"X-Of-Client": "kept"})


class Held:
    """Holds answers back until a test lets them go."""

    def __init__(self) -> None:
        self.opening = threading.Event()

    def __call__(self, handler: Handler) -> None:
        assert self.opening.wait(90)
        echo(handler)


@contextmanager
def shared_fronts(folder: Path, cache: Path) -> Iterator[SharedFronts]:
    with ExitStack() as stack:
        clients = stack.enter_context(ThreadPoolExecutor(16))
        redis = stack.enter_context(redis_server())
        upstreams = [stack.enter_context(scripted()) for _ in range(2)]
        started = stack.enter_context(servers(folder, cache))
        pair = [
            stack.enter_context(front(started, f"{upstream.url}?concurrency={n}", redis_url=redis.url))
            for upstream, n in zip(upstreams, (1, 2), strict=True)
        ]
        for started_front in pair:
            started_front.wait_state("ready")
        yield SharedFronts(*pair, *upstreams, clients)


@pytest.fixture(scope="module")
def _kept(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[SharedFronts]:
    with shared_fronts(tmp_path_factory.mktemp("fronts"), cache) as fronts:
        yield fronts


@pytest.fixture
def fronts(_kept: SharedFronts) -> SharedFronts:
    """Two fronts whose upstreams echo, and have seen nothing."""
    for upstream in (_kept.upstream_here, _kept.upstream_there):
        upstream.behaviour = echo
        with upstream.lock:
            upstream.requests.clear()
    return _kept


@pytest.fixture
def mortal_fronts(tmp_path: Path, cache: Path) -> Iterator[SharedFronts]:
    """Two fronts of which a test may kill one."""
    with shared_fronts(tmp_path, cache) as fronts:
        yield fronts


def occupy(fronts: SharedFronts) -> tuple[Held, Future[Answer]]:
    """Keeps the one permit of the first front busy until its answer is let go."""
    held = fronts.upstream_here.behaviour = Held()
    running = fronts.ask("first")
    eventually(lambda: fronts.upstream_here.n_running == 1, what="a call at the first upstream")
    return held, running


def prompts(upstream: ScriptedUpstream) -> list[str]:
    with upstream.lock:
        return [json.loads(body)["prompt"] for _, _, body in upstream.requests]


def sent(answer: Answer) -> str:
    """Returns the prompt that an upstream has echoed."""
    assert answer.status == 200, answer.body
    return str(json.loads(answer.json["body"])["prompt"])


def test_calls_that_wait_at_one_front_run_at_the_upstream_of_the_other_as_they_were_sent(fronts: SharedFronts):
    held, first = occupy(fronts)

    answers = [fronts.ask(f"p{number}").result(60) for number in range(4)]

    assert [sent(answer) for answer in answers] == ["p0", "p1", "p2", "p3"]
    assert prompts(fronts.upstream_there) == ["p0", "p1", "p2", "p3"]
    path, headers, body = fronts.upstream_there.requests[0]
    assert (path, headers["X-Of-Client"]) == (PATH, "kept")
    assert json.loads(body) == {"model": "m", "prompt": "p0"}
    held.opening.set()
    assert sent(first.result(30)) == "first"
    assert prompts(fronts.upstream_here) == ["first"]


def test_a_refusal_of_the_other_fronts_upstream_comes_back_as_it_was_given(fronts: SharedFronts):
    held, first = occupy(fronts)
    fronts.upstream_there.behaviour = lambda handler: handler.answer(422, {"error": {"message": "no"}}, X_Why="so")

    answer = fronts.ask("p").result(60)

    assert (answer.status, answer.json, answer.headers["x-why"]) == (422, {"error": {"message": "no"}}, "so")
    held.opening.set()
    first.result(30)


@pytest.mark.slow
def test_a_front_that_is_killed_loses_no_call_that_had_sent_nothing_and_splices_none(mortal_fronts: SharedFronts):
    """Waits for the 15 s after which the calls of a front that says nothing are taken from it."""
    fronts = mortal_fronts
    held, first = occupy(fronts)
    has_begun = threading.Event()
    never = threading.Event()

    def begins_or_hangs(handler: Handler) -> None:
        if json.loads(handler.body).get("stream"):
            handler.begin_stream()
            handler.chunk(b'data: {"n": 1}\n\n')
            has_begun.set()
        never.wait(120)

    fronts.upstream_there.behaviour = begins_or_hangs
    stream = fronts.ask("stream", stream=True)
    assert has_begun.wait(30)
    silent = fronts.ask("silent")
    eventually(lambda: fronts.upstream_there.n_running == 2, what="both permits of the other front")
    waiting = [fronts.ask(f"w{number}") for number in range(3)]

    try:
        fronts.there.server.stop()  # by SIGKILL
        held.opening.set()

        assert sent(first.result(60)) == "first"
        assert sorted(sent(future.result(90)) for future in waiting) == ["w0", "w1", "w2"]
        assert sent(silent.result(90)) == "silent"
        broken = stream.result(90)
        received = events(broken.body)
        assert received[0] == {"n": 1}
        assert "error" in received[1]
        assert len(received) == 2
        at_here = prompts(fronts.upstream_here)
        assert sorted(at_here) == ["first", "silent", "w0", "w1", "w2"]
    finally:
        never.set()
