"""Parts seen as one by health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from corosrv.base.errors import ShuttingDown, Starting
from corosrv.contracts.jobs import State
from corosrv.serving.part import Readiness


@dataclass
class Part:
    state: State = State.READY
    error: Exception | None = None
    counted: Any = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stats(self) -> Any:
        return self.counted


def test_it_is_ready_where_every_part_is():
    readiness = Readiness([Part(), Part()])

    readiness.check()
    assert readiness.state is State.READY


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ((State.READY, State.STARTING), State.STARTING),
        ((State.FAILED, State.READY), State.FAILED),
        ((State.STARTING, State.FAILED), State.STARTING),
        ((), State.READY),
    ],
)
def test_it_stands_where_the_first_part_does_that_is_not_ready(states: tuple[State, ...], together: State):
    assert Readiness(map(Part, states)).state is together


def test_it_refuses_as_the_first_part_that_does():
    readiness = Readiness([Part(), Part(error=Starting("first")), Part(error=ShuttingDown("second"))])

    with pytest.raises(Starting, match="first"):
        readiness.check()


def test_its_decode_loop_is_that_of_the_part_that_has_one():
    assert Readiness([Part(), Part(counted="counts")]).stats() == "counts"
    assert Readiness([Part()]).stats() is None
