"""What a reader's take returns, made of its pump."""

from __future__ import annotations

import pytest

from corosrv.base.errors import ReadTimeout
from corosrv.contracts.jobs.reader import Sink, take_first


class Batches:
    """Pumps batches of items until the sink has enough, and then raises what it is told to."""

    def __init__(self, *batches: list[int], error: Exception | None = None) -> None:
        self.batches = list(batches)
        self.error = error
        self.timeout: float | None = None

    def pump(self, sink: Sink[int], timeout: float | None) -> None:
        self.timeout = timeout
        while self.batches:
            if not sink(self.batches.pop(0)):
                return
        if self.error is not None:
            raise self.error


def test_the_first_batch_is_taken_whole_and_the_others_stay() -> None:
    source = Batches([1, 2], [3])

    assert take_first(source.pump, 5.0) == [1, 2]
    assert source.batches == [[3]]
    assert source.timeout == 5.0


def test_nothing_is_taken_of_a_pump_that_ends_without_items() -> None:
    assert take_first(Batches().pump, None) == []


def test_what_the_pump_raises_reaches_the_caller() -> None:
    with pytest.raises(ReadTimeout):
        take_first(Batches(error=ReadTimeout("nothing")).pump, 0.1)
