"""The worker's set-up: all its ways to succeed and to fail, and that a failed one leaves nothing."""

from __future__ import annotations

import os
import time

import gevent
import pytest

from corosrv.contracts.jobs.setup import Done, WorkerState
from corosrv.workers.wire.descriptors import MAX_FDS
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, WorkerConfig
from tests.workers.worker.predicting import TIMEOUT, counters, read, ready, started, submit, wait_for, wait_for_death

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]


def test_start_returns_at_once_and_a_greenlet_does_the_rest() -> None:
    with started() as worker:
        assert worker.state is WorkerState.STARTING
        assert worker.permits is None
        assert worker.setup.status == "starting"

        wait_for(worker, WorkerState.READY)

        assert worker.setup.status == "succeeded"
        assert worker.schema == {}
        assert counters(worker) == (1, 0, 0)


def test_the_worker_decides_how_many_slots_there_are_where_nobody_says() -> None:
    with started("offers_many:5") as worker:
        wait_for(worker, WorkerState.READY)

        assert counters(worker) == (5, 0, 0)


def test_what_is_printed_is_in_the_logs_of_the_setup() -> None:
    with ready("well:hello\n") as worker:
        assert worker.setup.logs == "hello\n"


def test_slots_may_have_any_ids() -> None:
    with started("offers:7,3", slots=2) as worker:
        wait_for(worker, WorkerState.READY)
        assert worker.permits is not None
        permits = [worker.permits.try_acquire(), worker.permits.try_acquire()]

        assert [permit.slot for permit in permits if permit is not None] == [7, 3]


@pytest.mark.parametrize(
    ("predictor", "reason", "logs"),
    [
        ("fails:ValueError: no", "ValueError: no", "Traceback of it all\nValueError: no\n"),
        ("exits:3", "crashed with exit code 3", "last words\nthe worker crashed with exit code 3\n"),
        ("exits:0", "crashed with exit code 0", None),
        ("is_killed:11", "crashed with signal 11 (SIGSEGV)", None),
        ("is_killed:40", "crashed with signal 40", None),
        ("writes:GARBAGE", "protocol error on its control channel", None),
        ("writes:TOO_LARGE", "a frame of 2147483647 bytes", None),
        ("closes_control", "closed its control channel", None),
        ("speaks_protocol:1", "speaks protocol 1, and the server 2", None),
        ("offers:", "offers the slots []", None),
        ("offers:1,1", "offers the slots [1, 1]", None),
        ("offers:" + ",".join(map(str, range(65))), "may have 64 unless an operator allows more", None),
    ],
)
def test_a_setup_that_fails_says_why(predictor: str, reason: str, logs: str | None) -> None:
    with started(predictor) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert reason in worker.reason
        assert worker.setup.status == "failed"
        assert worker.setup.completed_at is not None
        assert worker.setup.logs == logs if logs else reason in worker.setup.logs
        assert worker.permits is None


def test_a_worker_that_offers_other_slots_than_asked_for_is_refused() -> None:
    with started("offers:0,1", slots=3) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert "offers 2 slots, and 3 were asked for" in worker.reason


def test_a_command_that_does_not_exist_is_a_failed_setup() -> None:
    with started(command=("/proc/nowhere/python",)) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert "could not be started" in worker.reason
        assert worker.pid is None


def test_a_directory_that_does_not_exist_is_a_failed_setup() -> None:
    with started(cwd="/proc/nowhere") as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert "/proc/nowhere" in worker.reason


def test_a_worker_that_dies_before_it_says_anything_does_not_start_for_ever() -> None:
    with started(command=("/bin/false",)) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert "exit code 1" in worker.reason


def test_unknown_messages_and_a_second_ready_do_no_harm() -> None:
    for predictor in ("writes:UNKNOWN", "is_ready_twice"):
        with ready(predictor) as worker:
            assert worker.check_health() is None
            assert counters(worker) == (1, 0, 0)


@pytest.mark.parametrize("predictor", ["hangs", "is_stopped", "writes:HALF_A_FRAME"])
def test_a_setup_that_takes_too_long_times_out_and_its_process_ends(predictor: str) -> None:
    with started(predictor, setup_timeout=0.3) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert worker.reason == "the set-up timed out after 0.3 s"
        assert worker.pid is not None
        if predictor == "hangs":  # is_stopped would need the five seconds
            wait_for_death(worker.pid)


def test_the_limit_covers_the_start_of_the_process() -> None:
    with started(command=("/bin/sh", "-c", "sleep 60"), setup_timeout=0.05) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert "timed out" in worker.reason


def test_a_time_out_ends_grandchildren_too() -> None:
    for setup_timeout in (1.0, 4.0, 20.0):
        with started("has_family:hangs", setup_timeout=setup_timeout) as worker:
            wait_for(worker, WorkerState.SETUP_FAILED)

            if worker.setup.logs:  # else a busy machine had no time to start the grandchild
                wait_for_death(int(worker.setup.logs.split()[0]))
                return
    pytest.fail("no grandchild was started in time")


def test_a_worker_that_ignores_sigterm_is_killed_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.worker_process.TERMINATION", 0.1)
    with started("is_stubborn", setup_timeout=0.3) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)

        assert worker.pid is not None
        wait_for_death(worker.pid)


def test_a_worker_that_is_ready_too_late_is_not_taken() -> None:
    with started("is_ready_when_terminated", setup_timeout=0.4) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)
        worker.stop(TIMEOUT)

        assert worker.state is WorkerState.SETUP_FAILED
        assert worker.permits is None


def test_a_setup_in_time_is_not_ended_later() -> None:
    for setup_timeout in (1.0, 4.0, 20.0):
        with started(setup_timeout=setup_timeout) as worker:
            wait_for(worker, WorkerState.READY, WorkerState.SETUP_FAILED)
            if worker.state is WorkerState.READY:  # else a busy machine needs more time
                with gevent.Timeout(setup_timeout + 0.1, False):
                    wait_for(worker, WorkerState.DEFUNCT)

                assert worker.state is WorkerState.READY
                return
    pytest.fail("it was not ready in time")


@pytest.mark.parametrize("predictor", ["hangs", "has_family:hangs", "well"])
def test_a_stop_during_setup_ends_it_and_is_no_failure_of_the_worker(predictor: str) -> None:
    with started(predictor) as worker:
        gevent.idle()
        assert worker.pid is not None

        worker.stop(TIMEOUT)

        assert worker.state is WorkerState.STOPPED
        assert worker.setup.status == "failed"
        wait_for_death(worker.pid)


def test_a_stop_before_the_process_runs_leaves_none() -> None:
    for began in (False, True):
        worker = PredictorProcess(WorkerConfig(predictor="well"))
        if began:
            worker.start()

        worker.stop(TIMEOUT)
        gevent.idle()

        assert worker.state is WorkerState.STOPPED
        assert worker.pid is None


def test_the_worker_has_its_own_group_environment_and_directory(tmp_path: os.PathLike[str]) -> None:
    env = dict(os.environ) | {"PYTHONPATH": os.getcwd(), "COLOUR": "green"}
    with started("tells", env=env, cwd=str(tmp_path)) as worker:
        wait_for(worker, WorkerState.READY)

        assert worker.pid is not None
        assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)
        assert worker.setup.logs == f"green {tmp_path}"


def test_the_worker_inherits_its_ends_of_channels_and_lifeline_and_nothing_else() -> None:
    others = os.pipe()
    try:
        with ready("counts_sockets", slots=3) as worker:
            assert worker.setup.logs == "1 sockets, 1 pipes"
    finally:
        for fd in others:
            os.close(fd)


def test_setup_times_are_utc_and_in_order() -> None:
    before = time.time()
    with ready() as worker:
        started_at, completed_at = worker.setup.started_at, worker.setup.completed_at

        assert started_at is not None
        assert completed_at is not None
        assert before <= started_at.timestamp() <= completed_at.timestamp() <= time.time()


def test_more_lanes_than_one_message_carries_are_all_of_use() -> None:
    with ready(slots=MAX_FDS + 1) as worker:
        readers = [submit(worker) for _ in range(MAX_FDS + 1)]

        assert all(isinstance(read(reader)[-1], Done) for reader in readers)
