"""Several workers as one."""

from __future__ import annotations

import pytest

from corosrv.errors import NotFound, Unavailable
from corosrv.jobs.infer import CapabilityTarget, HandlerCard, InferJob, InferRequest, ModelTarget
from corosrv.kserve.infer_workers import InferWorkers
from tests.kserve.function_worker import FunctionWorker, Model
from tests.kserve.models import echo


def worker_of(*cards: HandlerCard) -> FunctionWorker:
    return FunctionWorker({card.key: Model(card, echo) for card in cards})


def test_the_first_worker_that_knows_a_model_gets_its_calls():
    first, second = worker_of(HandlerCard("a")), worker_of(HandlerCard("a", platform="other"), HandlerCard("b"))
    workers = InferWorkers([first, second])

    for name in ("a", "b", "a"):
        workers.submit(InferJob(ModelTarget(name), InferRequest())).close()

    assert (len(first.jobs), len(second.jobs)) == (2, 1)
    assert workers.find(ModelTarget("a")).platform == "corosrv-python"


def test_capabilities_are_looked_for_in_every_worker():
    workers = InferWorkers([worker_of(HandlerCard("a")), worker_of(HandlerCard("e", capability={"type": "embed"}))])

    assert workers.find(CapabilityTarget({"type": "embed"})).name == "e"


def test_what_nobody_knows_is_not_found():
    workers = InferWorkers([worker_of(HandlerCard("a")), worker_of()])

    with pytest.raises(NotFound, match="there is no model 'c'"):
        workers.find(ModelTarget("c"))
    with pytest.raises(NotFound, match="no model is served here"):
        InferWorkers([]).find(ModelTarget("c"))


def test_another_error_is_the_answer():
    first = FunctionWorker({"a": Model(HandlerCard("a"), echo, error=Unavailable("it drains"))})
    second = worker_of(HandlerCard("a"))

    with pytest.raises(Unavailable):
        InferWorkers([first, second]).submit(InferJob(ModelTarget("a"), InferRequest()))
    assert second.jobs == []


def test_all_standings_are_told():
    workers = InferWorkers([worker_of(HandlerCard("a")), worker_of(HandlerCard("b"), HandlerCard("c"))])

    assert [standing.card.name for standing in workers.standings()] == ["a", "b", "c"]
