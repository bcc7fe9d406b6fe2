"""Parts seen as one by health."""

from __future__ import annotations

from typing import Any

import pytest

from corosrv.base.errors import CorosrvError, ShuttingDown, Starting
from corosrv.contracts import settings
from corosrv.contracts.jobs import State
from corosrv.serving.part import Part, ServerContext
from corosrv.web.accounts import Accounts
from corosrv.web.groups import GroupTable
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.metrics import HttpStats
from corosrv.web.kept.keyed_answers import KeyedAnswers


class ScriptedPart(Part):
    def __init__(self, state: State = State.READY, error: Exception | None = None, counted: Any = None) -> None:
        self._state, self._error, self._counted = state, error, counted

    @property
    def state(self) -> State:
        return self._state

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def stats(self) -> Any:
        return self._counted

    def error_body(self, error: CorosrvError, path: str) -> str:
        return str(error)


def context_of(*parts: Part) -> ServerContext:
    bodies = BodyReader()
    return ServerContext(
        settings=settings.load({"model": "synthetic:"}, environ={}), http_stats=HttpStats(), bodies=bodies,
        answers=KeyedAnswers(bodies), groups=GroupTable(), accounts=Accounts(), parts=list(parts),
    )  # fmt: skip


def test_it_is_ready_where_every_part_is():
    context = context_of(ScriptedPart(), ScriptedPart())

    context.check()
    assert context.state is State.READY


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
    assert context_of(*map(ScriptedPart, states)).state is together


def test_it_refuses_as_the_first_part_that_does():
    context = context_of(
        ScriptedPart(), ScriptedPart(error=Starting("first")), ScriptedPart(error=ShuttingDown("second"))
    )

    with pytest.raises(Starting, match="first"):
        context.check()


def test_its_decode_loop_is_that_of_the_part_that_has_one():
    assert context_of(ScriptedPart(), ScriptedPart(counted="counts")).stats() == "counts"
    assert context_of(ScriptedPart()).stats() is None
