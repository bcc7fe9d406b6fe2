"""The lines of log that tell of ended jobs."""

import json
import logging
from collections.abc import Sequence

import pytest

from corosrv.contracts.jobs import Chunk, Finish
from corosrv.dialects.generation.job_usage import JobRecord

STOP = Chunk(0, "", 1, Finish.STOP, 7, 3, 10.0, 40.0)
LENGTH = Chunk(1, "", 0, Finish.LENGTH, 7, 3, 12.0, 30.0)
FAILED = Chunk(0, "no token fits", 0, Finish.ERROR, 7, code="grammar_dead_end")


class ListedBill:
    """Lists what the record of a job counts."""

    def __init__(self) -> None:
        self.ended_ms: list[float] = []
        self.closed: list[tuple[int, float]] = []

    def charge(self, prompt_tokens: Sequence[int]) -> None:
        raise AssertionError("a record does not charge")

    def drop(self) -> None:
        raise AssertionError("a record does not drop its bill")

    def add_end(self, chunk: Chunk) -> None:
        self.ended_ms.append(chunk.compute_ms)

    def close(self, generated_tokens: int, compute_ms: float = 0.0) -> None:
        self.closed.append((generated_tokens, compute_ms))


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "corosrv.jobs")


def record(n_tasks: int = 1, as_json: bool = False) -> JobRecord:
    return JobRecord("req-1", "tiny", n_tasks, as_json)


def test_a_job_that_ended_normally_has_one_line_at_level_debug(caplog):
    ending = record(2)

    ending.add([Chunk(0, "Hel", 1), Chunk(1, "lo", 2), STOP])
    assert caplog.records == []
    ending.add([LENGTH])
    ending.end()

    (line,) = caplog.records
    assert line.levelno == logging.DEBUG
    assert line.getMessage().startswith(
        "job req-1 of model tiny ended: length, 14 prompt tokens (6 cached), 4 generated,"
    )


@pytest.mark.parametrize("n_tasks", [1, 3])
def test_a_job_that_failed_says_why_at_level_info(caplog, n_tasks):
    ending = record(n_tasks)

    ending.add([Chunk(0, "So", 1), FAILED])
    ending.end()

    (line,) = caplog.records
    assert line.levelno == logging.INFO
    assert "ended: grammar_dead_end" in line.getMessage()


def test_a_job_whose_client_left_was_cancelled(caplog):
    ending = record()

    ending.add([Chunk(0, "So", 1)])
    ending.end()
    ending.end()

    (line,) = caplog.records
    assert (line.levelno, "ended: cancelled" in line.getMessage()) == (logging.INFO, True)


def test_what_was_computed_until_a_client_left_is_billed():
    bill = ListedBill()
    ending = JobRecord("req-1", "tiny", 3, bill=bill)

    ending.add([Chunk(0, "So", 1, compute_ms=12.0), Chunk(1, "On", 1, compute_ms=5.0)])
    ending.add([Chunk(0, " it", 2, compute_ms=22.0), Chunk(1, "", 1, Finish.STOP, 7, compute_ms=9.0)])
    ending.end()
    ending.end()

    assert bill.ended_ms == [9.0]
    assert bill.closed == [(5, 22.0)]


def test_a_line_may_be_json(caplog):
    record(as_json=True).add([STOP])

    members = json.loads(caplog.records[0].getMessage())
    assert members.pop("seconds") >= 0
    assert members == {
        "event": "job_ended",
        "id": "req-1",
        "model": "tiny",
        "outcome": "stop",
        "prompt_tokens": 7,
        "cached_tokens": 3,
        "generated_tokens": 1,
        "prompt_ms": 10.0,
        "decode_ms": 40.0,
    }
