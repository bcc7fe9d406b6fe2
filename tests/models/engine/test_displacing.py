"""Answers that lose their slot to somebody whose turn it is, in the real model: they pause, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gevent
import pytest

from corosrv.base.errors import QueueFull, Refused
from corosrv.contracts.jobs import Job, Sampling, Terms
from corosrv.models.engine import Engine
from tests.support.engines import SLOW, endless, job, opened, packaged_model, read_all, text_of

N_TOKENS = 400
LAST = Terms(caller="patient", tier=9)
FIRST = Terms(caller="urgent")
SAMPLINGS = [
    Sampling(temperature=0, ignore_eos=True),
    Sampling(temperature=0.9, seed=5, ignore_eos=True),
    Sampling(temperature=0.7, seed=6, grammar='root ::= ([a-z ]+ "." " ")+', ignore_eos=True),
]


def long_job(sampling: Sampling, terms: Terms = LAST) -> Job:
    return job("Once upon a time", max_tokens=N_TOKENS, sampling=sampling, terms=terms)


def wait_until(engine: Engine, n_tokens: int) -> None:
    """Waits until the only running task has generated so many tokens, and has had its slot for more than a second."""
    deadline = time.monotonic() + 60
    while engine.slots()[0].generated_tokens < n_tokens and time.monotonic() < deadline:
        gevent.sleep(0.05)


@pytest.fixture(scope="module", params=[False, True], ids=["own contexts", "one context"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with opened(model=packaged_model(), slots=1, ctx=1024, kv_unified=request.param) as engine:
        yield engine


@pytest.mark.model
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "grammar"])
def test_an_answer_that_loses_its_slot_says_what_it_says_otherwise(engine: Engine, sampling: Sampling) -> None:
    alone = text_of(read_all(engine.submit(long_job(sampling, Terms(caller="other")))))
    n_preempted = preempted(engine)
    reader = engine.submit(long_job(sampling))
    gevent.sleep(1.01)  # for which it keeps its slot in any case
    wait_until(engine, 64)

    read_all(engine.submit(job("Hello", terms=FIRST)))
    text = text_of(read_all(reader))

    assert preempted(engine) == n_preempted + 1
    assert text == alone


def preempted(engine: Engine) -> int:
    stats = engine.stats()
    assert stats is not None
    return stats.preempted


@pytest.mark.parametrize(
    ("place", "word"),
    [({"tier": -1}, "tier"), ({"tier": 10}, "tier"), ({"weight": 0.0}, "weight"), ({"weight": float("nan")}, "weight"),
     ({"weight": float("inf")}, "weight")],
)  # fmt: skip
def test_a_tier_or_weight_that_is_none_is_refused(place: dict[str, float], word: str) -> None:
    with opened() as engine, pytest.raises(Refused, match=word):
        engine.submit(job(terms=Terms(**place)))  # type: ignore[arg-type]


def test_a_refused_job_is_told_when_there_should_be_room() -> None:
    with opened(model=SLOW, slots=1, queue=1) as engine:
        readers = [engine.submit(endless()) for _ in range(2)]
        gevent.sleep(2)  # nothing ends meanwhile, and the next end is expected after as long again

        told = []
        for _ in range(3):
            with pytest.raises(QueueFull) as full:
                engine.submit(endless())
            told.append(full.value.retry_after or 0)

        assert told[0] >= 3
        assert told == sorted(set(told))
        for reader in readers:
            reader.close()
