"""A pool of something that is no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corosrv.contracts import settings
from corosrv.contracts.jobs import Job, ModelCard, State, Text
from corosrv.contracts.settings import ModelSettings
from corosrv.models.pool import ModelPool
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
    """Loads at once, and gives back what it was asked."""

    settings: ModelSettings
    info: Measures = field(default_factory=Measures)
    is_open: bool = False

    def open(self) -> None:
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
