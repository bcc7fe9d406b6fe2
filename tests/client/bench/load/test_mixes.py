"""What is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from corosrv.client.bench import plan as mixes
from corosrv.client.bench.plan import BenchPlan, Mix, Point
from corosrv.contracts.jobs import Text
from corosrv.models.engine import Engine
from tests.support.engines import opened, packaged_model


@pytest.fixture(scope="module")
def reading() -> Iterator[Engine]:
    """The real model, with room for the longest prompt."""
    with opened(model=packaged_model(), slots=1, ctx=2048, threads=1) as engine:
        yield engine


def n_tokens(engine: Engine, text: str) -> int:
    return engine.vocabulary(None).count(Text(text))


@pytest.mark.model
@pytest.mark.parametrize("seed", [1, 2])
def test_prompts_are_as_long_as_they_say(reading, seed):
    plan = BenchPlan(seed=seed)

    assert n_tokens(reading, mixes.user_prompt(plan, 0, 0, is_long=True)) == pytest.approx(1500, rel=0.07)
    assert n_tokens(reading, mixes.system_prompt(plan, 0)) == pytest.approx(400, rel=0.07)
    assert n_tokens(reading, mixes.user_prompt(plan, 0, 0, is_long=False)) < 50


def test_no_prompt_comes_twice():
    prompts = [mixes.user_prompt(BenchPlan(), number, i, False) for number in range(10) for i in range(100)]

    assert len({prompt[:40] for prompt in prompts}) == 1000


def test_a_seed_gives_the_same_bodies_again():
    first, again, other = (mixes.body(BenchPlan(seed=seed), "m", 3, 4) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_shared_prompt_is_the_same_in_a_round_and_new_in_the_next():
    plan = BenchPlan(mix=Mix.SHARED)
    systems = [
        json.loads(mixes.body(plan, "m", number, i))["messages"][0]["content"] for number in (0, 1) for i in (0, 1)
    ]

    assert systems[0] == systems[1] != systems[2] == systems[3]


@pytest.mark.parametrize(
    ("mix", "is_arriving", "is_long"),
    [(Mix.SHORT, False, False), (Mix.LONG, False, True), (Mix.ARRIVALS, False, False), (Mix.ARRIVALS, True, True)],
)
def test_only_long_prompts_are_long(mix, is_arriving, is_long):
    body = json.loads(mixes.body(BenchPlan(mix=mix), "m", 0, 0, is_arriving))

    assert (len(body["messages"][0]["content"].split()) > 1000) == is_long


def test_a_body_asks_for_a_stream_of_the_asked_length_with_its_usage():
    body = json.loads(mixes.body(BenchPlan(tokens=7, extra={"top_k": 3}), "m", 0, 0))

    assert (body["model"], body["max_tokens"], body["ignore_eos"], body["top_k"]) == ("m", 7, True, 3)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_completions_have_one_text():
    body = json.loads(mixes.body(BenchPlan(mix=Mix.SHARED, is_chat=False, is_forced=False), "m", 0, 0))

    assert "messages" not in body
    assert "ignore_eos" not in body
    assert body["prompt"].startswith("You answer")


def test_a_round_has_a_request_for_each_client_and_eight_at_least():
    assert [BenchPlan().n_requests(Point(clients)) for clients in (1, 8, 100)] == [8, 8, 100]
    assert BenchPlan(requests=3).n_requests(Point(100)) == 3
    assert BenchPlan(mix=Mix.ARRIVALS).n_requests(Point(16, 1.0)) == 8
