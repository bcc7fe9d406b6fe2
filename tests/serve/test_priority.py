"""Who is next when all wait for one slot, and what becomes of those whose time is over first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.serve.server import Server, servers
from tests.serve.wire import CHAT, Connection, chat, events, request

MESSAGES = [{"role": "user", "content": "hi"}]
# Every endpoint that generates, and a body for it.
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/completion": {"prompt": "hi", "n_predict": 2},
}
ENDLESS = {"max_tokens": 4000}  # a chat of 80 s: no test waits for its end
BEGUN_MS = "1500"  # in which an answer has begun also where much else runs
each_path = pytest.mark.parametrize("path", BODIES)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, cache: Any) -> Iterator[Server]:
    """A server with one slot."""
    with servers(tmp_path_factory.mktemp("narrow"), cache) as started:
        yield started.start(slots=1)


class Queue:
    """Requests that wait behind one that holds the only slot until it is let go."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self.server, self.stack = server, stack
        self.n_waiting = 0
        self.holder = stack.enter_context(server.connect())
        self.holder.send(request("POST", CHAT, chat(stream=True) | ENDLESS))
        server.wait_metric("running", 1)

    def add(self, body: Any = None, path: str = CHAT, headers: dict[str, str] | None = None) -> Connection:
        connection = self.stack.enter_context(self.server.connect())
        connection.send(request("POST", path, BODIES[path] | (body or {}), headers))
        self.n_waiting += 1
        self.server.wait_metric("waiting", self.n_waiting)
        return connection

    def let_go(self) -> None:
        self.holder.reset()


@pytest.fixture
def queue(narrow: Server) -> Iterator[Queue]:
    with ExitStack() as stack:
        yield Queue(narrow, stack)
    narrow.wait_idle()


@each_path
def test_an_urgent_request_passes_all_that_wait(queue: Queue, path: str) -> None:
    others = [queue.add(ENDLESS) for _ in range(20)]
    urgent = queue.add({"priority": 1}, path)
    queue.let_go()

    answer = urgent.answer()  # any of the others would keep it waiting

    assert answer.status == 200, answer.body
    assert not any(other.has_input(0) for other in others)


def test_a_header_says_the_priority_of_a_body_that_does_not(queue: Queue) -> None:
    usual = queue.add({"priority": 5} | ENDLESS, headers={"X-Priority": "1"})
    last = queue.add({"priority": 0}, headers={"X-Priority": "9"})
    second = queue.add(headers={"X-Priority": "4"})
    queue.let_go()

    assert second.answer().status == 200
    assert not last.has_input(0)  # nor later, while the usual one runs
    usual.reset()
    assert last.answer().status == 200


@each_path
@pytest.mark.parametrize("priority", [-1, 10, 1.5, "1", True])
def test_a_priority_that_is_none_is_refused_by_name(narrow: Server, path: str, priority: Any) -> None:
    with narrow.connect() as connection:
        answer = connection.post(BODIES[path] | {"priority": priority}, path)

    assert answer.status == 400
    assert "priority" in answer.error["message"]


@each_path
def test_a_header_that_is_no_number_is_refused_by_name(narrow: Server, path: str) -> None:
    for name in ("X-Priority", "X-Request-Timeout-Ms"):
        with narrow.connect() as connection:
            answer = connection.post(BODIES[path], path, {name: "soon"})

        assert answer.status == 400
        assert name in answer.error["message"]


@pytest.mark.slow
def test_a_request_that_waits_rises_by_a_class_in_ten_seconds(queue: Queue) -> None:
    earlier = queue.add({"priority": 6})
    since = time.monotonic()
    queue.holder.head()
    next(None for _ in queue.holder.pieces() if time.monotonic() > since + 11)
    later = queue.add({"priority": 5} | ENDLESS)
    queue.let_go()

    assert earlier.answer().status == 200
    assert not later.has_input(0)


@each_path
def test_a_request_whose_time_is_over_before_it_has_a_slot_is_never_run(queue: Queue, path: str) -> None:
    began = time.monotonic()
    with queue.server.connect() as connection:
        answer = connection.post(BODIES[path], path, {"X-Request-Timeout-Ms": "300"})

    assert time.monotonic() - began >= 0.3
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "none of it was run" in answer.error["message"]
    queue.server.wait_metric("waiting", 0)
    assert queue.server.metric("running") == 1


@each_path
def test_an_answer_that_takes_longer_than_it_may_ends_with_504(narrow: Server, path: str) -> None:
    long = {name: 4000 for name in BODIES[path] if "max" in name or "n_predict" in name}
    with narrow.connect() as connection:
        answer = connection.post(BODIES[path] | long, path, {"X-Request-Timeout-Ms": BEGUN_MS})

    assert answer.status == 504
    assert "before its answer was complete" in answer.error["message"]
    narrow.wait_idle()


def test_a_stream_that_takes_longer_than_it_may_ends_with_what_there_is_and_an_error(narrow: Server) -> None:
    with narrow.connect() as connection:
        body = chat(stream=True, max_tokens=4000)
        answer = connection.post(body, headers={"X-Request-Timeout-Ms": BEGUN_MS})

    sent = events(answer.body)
    assert answer.status == 200
    assert any(event["choices"][0]["delta"].get("content") for event in sent[:-1])
    assert sent[-1]["error"]["code"] == "deadline_exceeded"
    narrow.wait_idle()


def test_embeddings_take_a_priority_as_well(narrow: Server) -> None:
    with narrow.connect() as connection:
        answer = connection.post({"input": "hi", "priority": 10}, "/v1/embeddings")

    assert answer.status == 400
    assert "priority" in answer.error["message"]
