"""A pool of something that is no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from gevent.event import Event

from corosrv.base.errors import Starting
from corosrv.contracts import settings
from corosrv.contracts.jobs import Job, ModelCard, State, Text
from corosrv.contracts.settings import ModelSettings
from corosrv.models.loadable import LoadProgress
from corosrv.models.pool import ModelPool
from corosrv.models.served import ServedModel
from tests.support.engines import TIMEOUT, packaged_model
from tests.support.waiting import wait_until


@dataclass
class Measures:
    size: int = 1000
    packed_bytes: int = 0
    shared_cells: int = 0
    context: int = 64


class Ticket:
    """What a job of an Echo gets in place of a reader."""

    def __init__(self, job: Job) -> None:
        self.job = job


@dataclass(eq=False)
class Echo:
    """Loads at once, or when it may, and gives back what it was asked."""

    settings: ModelSettings
    info: Measures = field(default_factory=Measures)
    is_open: bool = False
    may_open: Event | None = None
    load_progress: LoadProgress = field(default_factory=LoadProgress)

    def open(self) -> None:
        if self.may_open is not None:
            assert self.may_open.wait(TIMEOUT)
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def drain(self, message: str) -> None:
        pass

    def card(self, model: str | None) -> ModelCard:
        return ModelCard(self.settings.names[0], 0)

    def submit(self, job: Any) -> Any:
        return Ticket(job)

    def stats(self) -> None:
        return None


def test_a_pool_loads_runs_and_closes_whatever_is_loadable():
    made: list[Echo] = []

    def make(model: ModelSettings) -> Any:
        made.append(Echo(model))
        return made[-1]

    pool = ModelPool(settings.load({"model": "a=synthetic:,b=synthetic:"}, environ={}), make)
    pool.start()
    wait_until(lambda: pool.state is State.READY)
    ticket: Any = pool.submit(Job((Text("Hi"),), model="b"))

    assert isinstance(ticket, Ticket)
    assert ticket.job.model == "b"
    assert [(echo.settings.names, echo.is_open) for echo in made] == [(("a",), True), (("b",), True)]
    pool.close()
    assert not any(echo.is_open for echo in made)


def test_a_model_that_loads_shows_how_far_it_is_and_when_to_come_back(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("corosrv.models.served.time.monotonic", lambda: clock[0])
    may_open = Event()
    made: list[Echo] = []

    def make(model: ModelSettings) -> Any:
        made.append(Echo(model, may_open=may_open))
        return made[-1]

    def refused() -> Starting:
        with pytest.raises(Starting) as caught:
            pool.check()
        return caught.value

    pool = ModelPool(settings.load({"model": packaged_model()}, environ={}), make)
    pool.start()
    wait_until(lambda: made)
    size = pool.models()[0].progress["total"]

    assert size > 1_000_000
    assert (str(refused()), refused().retry_after) == ("the model is still loading", 1)
    clock[0] += 10
    made[0].load_progress = LoadProgress.after(10.0, 0.25)
    card = pool.models()[0]
    assert (card.status, card.progress) == ("loading", {"bytes": size // 4, "total": size})
    assert str(refused()) == "the model is still loading: 25 %"
    assert 30 <= (refused().retry_after or 0) <= 33
    may_open.set()
    wait_until(lambda: pool.state is State.READY)
    assert (pool.models()[0].status, pool.models()[0].progress) == ("loaded", {})
    pool.close()


def test_a_model_that_does_not_say_how_far_it_is_takes_as_long_as_the_last_time(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("corosrv.models.served.time.monotonic", lambda: clock[0])
    model = ServedModel(ModelSettings(model="synthetic:"), lambda: None)
    model.begin_load(Echo(model.settings))  # type: ignore[arg-type]
    clock[0] += 50
    model.loaded()
    model.begin_unload()
    model.unloaded()
    first = model.retry_after()
    model.begin_load(Echo(model.settings))  # type: ignore[arg-type]
    clock[0] += 20

    assert 50 <= first <= 55
    assert 30 <= model.retry_after() <= 33
    clock[0] += 100
    assert model.retry_after() == 1
