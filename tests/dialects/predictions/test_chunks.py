"""Outputs on their way: several at once, in order."""

from __future__ import annotations

from typing import Any

import gevent
from gevent.event import Event

from corosrv.contracts.jobs.setup import FileOutput, OutputChunk
from corosrv.dialects.predictions.run import AT_ONCE, Chunks, Output

TIMEOUT = 10


class Files:
    """Resolves each file when it is told to; one that is bad raises."""

    def __init__(self) -> None:
        self.gates: dict[int, Event] = {}
        self.emitted: list[Any] = []
        self.errors: list[Exception] = []
        self.chunks = Chunks(self._resolve, self.emitted.append, self.errors.append)

    def _resolve(self, message: Output) -> Any:
        gate = self.gates.setdefault(message.index, Event())
        assert gate.wait(TIMEOUT)
        if isinstance(message, FileOutput) and message.filename == "bad":
            raise ValueError("bad")
        return message.index

    def put(self, index: int, name: str = "f") -> None:
        self.chunks.add(FileOutput(name, "file_type", "text/plain", index))

    def ready(self, *indexes: int) -> None:
        for index in indexes:
            self.gates.setdefault(index, Event()).set()
        gevent.idle()


def test_files_that_are_ready_early_wait_for_those_before_them():
    files = Files()
    for index in range(3):
        files.put(index)

    files.ready(2, 1)
    assert files.emitted == []
    files.ready(0)

    assert files.emitted == [0, 1, 2]


def test_a_value_waits_for_the_file_before_it():
    files = Files()
    files.put(0)
    files.chunks.add(OutputChunk("value", 1))
    files.ready(1)
    assert files.emitted == []

    files.ready(0)

    assert files.emitted == [0, 1]


def test_values_alone_go_at_once():
    files = Files()

    files.chunks.add(OutputChunk("value", 0))

    assert files.emitted == ["value"]


def test_so_many_are_under_way_at_once_and_then_the_predictor_waits():
    files = Files()
    putting = gevent.spawn(lambda: [files.put(index) for index in range(AT_ONCE + 1)])
    gevent.idle()
    assert len(files.gates) == AT_ONCE
    assert not putting.ready()

    files.ready(*range(AT_ONCE + 1))
    putting.get(timeout=TIMEOUT)
    files.chunks.finish()

    assert files.emitted == list(range(AT_ONCE + 1))


def test_nothing_comes_behind_one_that_failed():
    files = Files()
    files.put(0)
    files.put(1, "bad")
    files.put(2)

    files.ready(2, 1, 0)
    files.chunks.finish()
    files.chunks.add(OutputChunk("value", 3))

    assert files.emitted == [0]
    assert [str(error) for error in files.errors] == ["bad"]


def test_closing_gives_up_what_is_under_way():
    files = Files()
    files.put(0)

    files.chunks.close()
    files.chunks.finish()

    assert files.emitted == []
