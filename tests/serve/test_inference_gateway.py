"""What an inference gateway says of a request: whose share it takes, and what goes before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.serve.server import Server, servers
from tests.serve.test_priority import ENDLESS, Queue

TENANT = "X-Gateway-Inference-Fairness-Id"
OBJECTIVE = "X-Gateway-Inference-Objective"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, cache: Any) -> Iterator[Server]:
    """A server with one slot, behind a gateway of this machine."""
    with servers(tmp_path_factory.mktemp("narrow"), cache) as started:
        yield started.start(slots=1, gateway_from="127.0.0.0/8", objectives="premium=10,batch=-10")


@pytest.fixture
def queue(narrow: Server) -> Iterator[Queue]:
    with ExitStack() as stack:
        yield Queue(narrow, stack)
    narrow.wait_idle()


def test_each_fairness_id_has_a_share(queue: Queue) -> None:
    first = queue.add({"max_tokens": 20}, headers={TENANT: "a"})
    second = queue.add(ENDLESS, headers={TENANT: "a"})
    other = queue.add(headers={TENANT: "b"})
    queue.let_go()

    assert first.answer().status == 200
    assert other.answer().status == 200  # it came last, and its tenant had nothing yet
    assert not second.has_input(0)


def test_an_objective_goes_before_whoever_waits(queue: Queue) -> None:
    last = queue.add({"priority": 1}, headers={OBJECTIVE: "batch", TENANT: "a"})
    usual = queue.add(ENDLESS, headers={TENANT: "b"})
    urgent = queue.add({"priority": 9}, headers={OBJECTIVE: "premium", TENANT: "c"})
    queue.let_go()

    assert urgent.answer().status == 200
    assert not last.has_input(0)
    usual.reset()
    assert last.answer().status == 200


def test_a_fairness_id_that_is_too_long_is_refused_by_name(narrow: Server) -> None:
    with narrow.connect() as connection:
        answer = connection.post({"messages": []}, headers={TENANT: "a" * 129})

    assert answer.status == 400
    assert TENANT in answer.error["message"]
