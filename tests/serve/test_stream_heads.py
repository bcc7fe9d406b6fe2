"""What a stream that waits is refused with has a status, and says whether another try makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Answer, chat, request

BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat(),
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
    "/completion": {"prompt": "hi"},
}


@pytest.fixture(scope="module")
def busy(_kept: Servers) -> Iterator[Server]:
    """Its only slot is taken."""
    server = _kept.start(slots=1, model="synthetic:?tokens_per_s=20", ctx=16384)
    with server.connect(timeout=60) as connection:
        connection.send(request("POST", CHAT, chat(max_tokens=16000, stream=True)))
        connection.head()
        yield server


def ask(server: Server, path: str, timeout_ms: int, **fields: Any) -> Answer:
    with server.connect(timeout=60) as connection:
        return connection.post({**BODIES[path], **fields}, path, {"X-Request-Timeout-Ms": str(timeout_ms)})


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_whose_time_passes_before_it_starts_has_the_status_of_its_error(busy: Server, path: str):
    answer = ask(busy, path, 200, stream=True)

    assert answer.status == 503
    assert answer.headers["x-should-retry"] == "false"
    assert b"before a slot was free" in answer.body


def test_a_stream_that_waits_longer_than_a_second_has_its_head_and_ends_in_an_event(busy: Server):
    answer = ask(busy, CHAT, 1500, stream=True)

    assert answer.status == 200
    assert b"before a slot was free" in answer.body


def test_an_answer_as_a_whole_that_came_too_late_is_not_to_be_tried_again(busy: Server):
    answer = ask(busy, CHAT, 200)

    assert (answer.status, answer.headers["x-should-retry"]) == (503, "false")
