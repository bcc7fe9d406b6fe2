"""A front of two upstreams, under each policy that heeds what a request says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.serve.fronts import ServerFront, front
from tests.serve.server import Servers
from tests.serve.wire import CHAT, chat
from tests.support.scripted_upstream import ScriptedUpstream, scripted

# The addresses of the upstreams, which differ from run to run, decide where each of these goes: many enough that not
# all have the same one.
SESSIONS = [f"session-{number}." for number in range(32)]


@contextmanager
def two_upstreams(start: Servers, **settings: object) -> Iterator[tuple[ServerFront, list[ScriptedUpstream]]]:
    with scripted() as first, scripted() as second, front(start, first.url, second.url, **settings) as forwarding:
        for number in range(2):
            forwarding.wait_state("ready", number)
        yield forwarding, [first, second]


def ask(forwarding: ServerFront, content: str, **headers: str) -> None:
    with forwarding.server.connect() as connection:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        assert connection.post(chat(content, model="m"), CHAT, fields).status == 200


def places(upstreams: list[ScriptedUpstream], marker: str) -> set[int]:
    """Returns which upstreams have got a request with this text."""
    return {
        number
        for number, upstream in enumerate(upstreams)
        for _, _, body in upstream.requests
        if marker.encode() in body
    }


def test_prompts_that_begin_alike_go_to_one_upstream_and_others_elsewhere(start: Servers):
    with two_upstreams(start, upstream_policy="prefix") as (forwarding, upstreams):
        for number, name in itertools.product(range(4), ("first", "second")):
            ask(forwarding, f"the {name} conversation, " * 20 + f"turn {number}")

        assert sorted(map(len, (places(upstreams, "first"), places(upstreams, "second")))) == [1, 1]
        assert places(upstreams, "first") != places(upstreams, "second")


def test_requests_of_one_session_go_to_one_upstream(start: Servers):
    with two_upstreams(start, upstream_policy="sticky") as (forwarding, upstreams):
        for name in SESSIONS * 2:
            ask(forwarding, name, X_Session_Id=name)

        assert all(len(places(upstreams, name)) == 1 for name in SESSIONS)
        assert {place for name in SESSIONS for place in places(upstreams, name)} == {0, 1}


@pytest.mark.parametrize("weights", [(1, 1), (3, 1)])
def test_upstreams_take_turns_by_their_weights(start: Servers, weights: tuple[int, int]):
    with scripted() as first, scripted() as second:
        urls = [f"{upstream.url}?weight={weight}" for upstream, weight in zip((first, second), weights, strict=True)]
        with front(start, *urls, upstream_policy="round_robin") as forwarding:
            for number in range(2):
                forwarding.wait_state("ready", number)
            for number in range(16):
                ask(forwarding, f"{number}")

        assert abs(len(first.requests) - 16 * weights[0] / sum(weights)) <= 1
        assert len(first.requests) + len(second.requests) == 16


@pytest.mark.parametrize("field", ["user", "prompt_cache_key"])
def test_a_body_may_name_its_session(start: Servers, field: str):
    with two_upstreams(start, upstream_policy="sticky") as (forwarding, upstreams):
        with forwarding.server.connect() as connection:
            for name in SESSIONS * 2:
                assert connection.post(chat(model="m", **{field: name})).status == 200

        assert all(len(places(upstreams, name)) == 1 for name in SESSIONS)
        assert {place for name in SESSIONS for place in places(upstreams, name)} == {0, 1}
