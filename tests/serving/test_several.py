"""Several workers seen as one: each call goes to the first that knows its target."""

from __future__ import annotations

import pytest

from corosrv.base.errors import NotFound, Starting, Unavailable
from corosrv.contracts.jobs.infer import (
    HandlerCard,
    InferJob,
    InferReader,
    InferRequest,
    InferWorker,
    ModelStanding,
    ModelTarget,
    Target,
)
from corosrv.serving.parts import SeveralWorkers


class Named(InferWorker):
    """Knows models by name, and is asked for no answer; `busy` are known and cannot be called now."""

    def __init__(self, *names: str, busy: tuple[str, ...] = (), state: str = "READY") -> None:
        self.names = names
        self.busy = busy
        self.state = state
        self.jobs: list[InferJob] = []

    def standings(self) -> tuple[ModelStanding, ...]:
        return tuple(ModelStanding(HandlerCard(name), self.state) for name in self.names)

    def find(self, target: Target) -> HandlerCard:
        assert isinstance(target, ModelTarget)
        if target.name in self.busy:
            raise Unavailable("busy")
        if target.name not in self.names:
            raise NotFound(f"{self.names} has no {target.name}")
        return HandlerCard(target.name)

    def submit(self, job: InferJob) -> InferReader:
        self.jobs.append(job)
        return None  # type: ignore[return-value]


def job(name: str) -> InferJob:
    return InferJob(ModelTarget(name), InferRequest())


def test_a_call_goes_to_the_worker_that_knows_its_model():
    first, second = Named("a"), Named("b")
    workers = SeveralWorkers([first, second])

    workers.submit(job("b"))
    workers.submit(job("a"))

    assert [len(first.jobs), len(second.jobs)] == [1, 1]
    assert workers.find(ModelTarget("b")).name == "b"


def test_of_two_that_know_a_name_the_first_gets_the_call_and_is_listed():
    first, second = Named("a"), Named("a", "b", state="LOADING")
    workers = SeveralWorkers([first, second])

    workers.submit(job("a"))

    assert (len(first.jobs), len(second.jobs)) == (1, 0)
    assert [(standing.card.name, standing.state) for standing in workers.standings()] == [
        ("a", "READY"),
        ("b", "LOADING"),
    ]


def test_a_model_that_nobody_knows_is_told_by_the_first():
    with pytest.raises(NotFound, match=r"\('a',\) has no c"):
        SeveralWorkers([Named("a"), Named("b")]).find(ModelTarget("c"))


def test_a_model_that_is_known_and_busy_is_not_looked_for_elsewhere():
    with pytest.raises(Unavailable):
        SeveralWorkers([Named("a", busy=("c",)), Named("c")]).find(ModelTarget("c"))


def test_a_worker_that_is_starting_is_asked_last_and_outranks_those_that_know_nothing():
    class StartingWorker(Named):
        def find(self, target: Target) -> HandlerCard:
            raise Starting("it starts")

    workers = SeveralWorkers([Named("a"), StartingWorker(), Named("b")])

    assert workers.find(ModelTarget("b")).name == "b"
    with pytest.raises(Starting, match="it starts"):
        workers.find(ModelTarget("c"))


def test_without_workers_nothing_is_known():
    with pytest.raises(NotFound):
        SeveralWorkers([]).find(ModelTarget("a"))
