"""Parts seen as one by health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from corosrv.errors import ShuttingDown, Starting
from corosrv.jobs import State
from corosrv.whole import Whole


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
    whole = Whole([Part(), Part()])

    whole.check()
    assert whole.state is State.READY


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ((State.READY, State.STARTING), State.STARTING),
        ((State.FAILED, State.READY), State.FAILED),
        ((State.STARTING, State.FAILED), State.STARTING),
        ((), State.READY),
    ],
)
def test_it_stands_where_the_first_part_does_that_is_not_ready(states: tuple[State, ...], whole: State):
    assert Whole(map(Part, states)).state is whole


def test_it_refuses_as_the_first_part_that_does():
    whole = Whole([Part(), Part(error=Starting("first")), Part(error=ShuttingDown("second"))])

    with pytest.raises(Starting, match="first"):
        whole.check()


def test_its_decode_loop_is_that_of_the_part_that_has_one():
    assert Whole([Part(), Part(counted="counts")]).stats() == "counts"
    assert Whole([Part()]).stats() is None
