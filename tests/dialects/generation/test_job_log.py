"""The lines of log that tell of ended jobs."""

import json
import logging

import pytest

from corosrv.contracts.jobs import Chunk, Finish
from corosrv.dialects.generation.job_log import JobRecord

STOP = Chunk(0, "", 1, Finish.STOP, 7, 3, 10.0, 40.0)
LENGTH = Chunk(1, "", 0, Finish.LENGTH, 7, 3, 12.0, 30.0)
FAILED = Chunk(0, "no token fits", 0, Finish.ERROR, 7, code="grammar_dead_end")


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
