"""A worker that dies, breaks the protocol or hangs: every prediction ends once, and nothing is left behind."""

from __future__ import annotations

import os
import signal

import gevent
import pytest
from gevent.event import Event

from corosrv.base.errors import NoCapacity
from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.buffered import MAX_UNREAD
from corosrv.contracts.jobs.setup import Done, Failed, LogLine, OutputChunk, WorkerState
from tests.support.waiting import wait_until
from tests.workers.worker.predicting import TIMEOUT, counters, is_alive, read, ready, submit, wait_for, wait_for_death

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]


@pytest.mark.parametrize(
    ("do", "arguments", "end"),
    [
        ("exit", {"code": 3}, "crashed with exit code 3"),
        ("exit", {"code": 0}, "crashed with exit code 0"),
        ("die", {"signal": signal.SIGKILL}, "crashed with signal 9 (SIGKILL)"),
        ("die", {"signal": signal.SIGSEGV}, "crashed with signal 11 (SIGSEGV)"),
        ("abort", {}, "crashed with signal 6 (SIGABRT): out of cheese"),
        ("exit_in_a_frame", {}, "crashed with exit code 1"),
        ("close_control", {}, "closed its control channel"),
        ("write_to_control", {"what": "GARBAGE"}, "protocol error on its control channel"),
        ("write_to_control", {"what": "TOO_LARGE"}, "a frame of 2147483647 bytes"),
        ("fail_slot", {"slot": 99}, "slot 99 has failed, but the worker has no such slot"),
    ],
)
def test_a_dead_worker_fails_every_prediction_once(do: str, arguments: dict[str, object], end: str) -> None:
    with ready(slots=3) as worker:
        other = submit(worker, "wait_for_cancel")
        assert other.take(TIMEOUT) == [LogLine("stdout", "waits\n")]

        *_, last = read(submit(worker, do, **arguments))

        assert isinstance(last, Failed)
        assert "crash" in last.error
        assert end in last.error
        assert end in worker.reason
        (failed,) = read(other)
        assert isinstance(failed, Failed)
        assert failed.error == worker.reason
        assert worker.state is WorkerState.DEFUNCT
        assert counters(worker) == (0, 0, 3)
        assert worker.pid is not None
        assert not is_alive(worker.pid)


def test_a_worker_that_says_it_will_abort_and_does_not_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.worker_process.ABORT", 0.05)
    with ready() as worker:
        (failed,) = read(submit(worker, "threaten_to_abort"))

        assert isinstance(failed, Failed)
        assert failed.error == "the worker crashed with signal 9 (SIGKILL): out of cheese"


def test_what_a_prediction_said_before_the_crash_is_kept() -> None:
    with ready() as worker:
        assert read(submit(worker, "exit", code=1))[0] == LogLine("stdout", "so far\n")


def test_a_prediction_that_ended_before_the_crash_has_not_failed() -> None:
    with ready() as worker:
        assert isinstance(read(submit(worker, "done_and_exit"))[-1], Done)

        wait_for(worker, WorkerState.DEFUNCT)


def test_what_arrives_together_with_the_end_is_heard() -> None:
    with ready() as worker:
        reader = submit(worker, "flood_and_exit", chunks=20, size=1000)
        assert worker.pid is not None
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # blocks the hub: it learns all at once

        *chunks, last = read(reader)

        assert len(chunks) == 20
        assert isinstance(last, Done)


def test_a_process_that_escaped_from_the_group_holds_nothing_up() -> None:
    with ready() as worker:
        told, last = read(submit(worker, "leave_family", escapes=True))

        assert isinstance(told, OutputChunk)
        try:
            assert is_alive(told.output)
            assert isinstance(last, Failed)
        finally:
            os.kill(told.output, signal.SIGKILL)


def test_an_unread_prediction_of_a_dead_worker_ends_too() -> None:
    with ready(slots=2) as worker:
        flooding = submit(worker, "flood", chunks=1000, size=100_000)
        wait_until(lambda: flooding._n_bytes > MAX_UNREAD)  # now it waits for room
        for _ in range(30):
            read(submit(worker, "nothing"))
        read(submit(worker, "exit", code=1))

        *chunks, last = read(flooding)

        assert len(chunks) > 1 + MAX_UNREAD // 100_000  # also what was under way
        assert [chunk.index for chunk in chunks if isinstance(chunk, OutputChunk)] == list(range(len(chunks)))
        assert isinstance(last, Failed)


def test_the_death_of_an_idle_worker_is_noticed_at_once() -> None:
    with ready(slots=2) as worker:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        wait_for(worker, WorkerState.DEFUNCT)

        assert counters(worker) == (0, 0, 2)
        assert worker.check_health() == "the worker crashed with signal 9 (SIGKILL)"


def test_a_worker_that_dies_right_after_it_was_ready_is_defunct() -> None:
    with ready("is_ready_and_exits:3") as worker:
        wait_for(worker, WorkerState.DEFUNCT)

        assert worker.setup.status == "succeeded"
        assert "exit code 3" in worker.reason


def test_a_dead_worker_has_no_capacity() -> None:
    with ready(slots=2) as worker:
        read(submit(worker, "exit", code=5))

        with pytest.raises(NoCapacity):
            worker.submit(PredictJob("late", {}, "/proc/nowhere"))

        assert counters(worker) == (0, 0, 2)


def test_whoever_waits_for_the_health_of_a_worker_that_dies_is_told() -> None:
    with ready("ill:hangs", slots=1) as worker:
        asking = gevent.spawn(worker.check_health)
        gevent.idle()

        read(submit(worker, "exit", code=5))

        assert "exit code 5" in asking.get(timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("do", "arguments", "reason"),
    [
        ("write", {"what": "GARBAGE"}, "protocol error: no message"),
        ("write", {"what": "TOO_LARGE"}, "a frame of 2147483647 bytes"),
        ("close_channel", {}, "closed its channel"),
        ("end_another", {}, "Done came for another prediction"),
        ("fail_slot", {"slot": 0}, "the slot is torn"),
    ],
)
def test_a_broken_slot_fails_its_prediction_and_no_other(do: str, arguments: dict[str, object], reason: str) -> None:
    with ready(slots=2) as worker:
        *_, last = read(submit(worker, do, **arguments))

        assert isinstance(last, Failed)
        assert reason in last.error
        assert worker.permits is not None
        assert reason in worker.permits.reasons[0]
        assert counters(worker) == (1, 0, 1)
        assert worker.state is WorkerState.READY
        for _ in range(3):
            assert isinstance(read(submit(worker))[-1], Done)


def test_what_runs_on_a_slot_that_failed_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "corosrv.predictor"), ready(slots=2) as worker:
        read(submit(worker, "fail_slot", slot=0))

        with gevent.Timeout(TIMEOUT):
            while "let go" not in caplog.text:
                assert worker.check_health() is None


@pytest.mark.parametrize("do", ["end_twice", "talk_after_the_end"])
def test_a_slot_that_talks_while_nothing_runs_is_poisoned_idle_as_it_is(do: str) -> None:
    with ready(slots=2) as worker:
        changed = Event()
        worker.on_change(changed.set)

        assert isinstance(read(submit(worker, do))[-1], Done)

        assert changed.wait(TIMEOUT)
        assert counters(worker) == (1, 0, 1)


def test_an_unknown_message_does_a_slot_no_harm() -> None:
    with ready() as worker:
        assert isinstance(read(submit(worker, "write", what="UNKNOWN"))[-1], Done)
        assert isinstance(read(submit(worker))[-1], Done)


def test_a_worker_without_a_slot_left_is_defunct_and_ended() -> None:
    with ready(slots=2) as worker:
        for slot in range(2):
            assert worker.state is WorkerState.READY
            read(submit(worker, "fail_slot", slot=slot))

        assert worker.state is WorkerState.DEFUNCT
        assert worker.reason == "all slots are poisoned: the slot is torn"
        assert worker.pid is not None
        wait_for_death(worker.pid)


def test_grandchildren_die_with_the_worker_and_hold_nothing_up() -> None:
    with ready(slots=2) as worker:
        told, last = read(submit(worker, "leave_family"))

        assert isinstance(told, OutputChunk)
        assert isinstance(last, Failed)
        assert "exit code 7" in last.error
        wait_for_death(told.output)


def test_a_stopped_worker_is_killed_with_its_predictions() -> None:
    with ready() as worker:
        reader = submit(worker, "die", signal=signal.SIGSTOP)
        reader.take(TIMEOUT)

        worker.stop(0.05)

        (failed,) = read(reader)
        assert isinstance(failed, Failed)
        assert failed.error == "server shut down"
        assert worker.state is WorkerState.STOPPED


def test_a_stop_lets_nothing_behind_and_is_no_crash() -> None:
    with ready(slots=2) as worker:
        worker.stop(TIMEOUT)

        assert worker.state is WorkerState.STOPPED
        assert counters(worker) == (0, 0, 2)
        assert worker.pid is not None
        assert not is_alive(worker.pid)
        worker.stop(TIMEOUT)
        worker.kill()


def test_a_kill_ends_a_stop_that_waits() -> None:
    with ready() as worker:
        reader = submit(worker, "die", signal=signal.SIGSTOP)
        reader.take(TIMEOUT)
        stopping = gevent.spawn(worker.stop, 60)
        gevent.idle()

        worker.kill()

        stopping.get(timeout=TIMEOUT)
        assert isinstance(read(reader)[-1], Failed)


def test_a_listener_that_fails_does_not_keep_the_others_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    with ready() as worker:
        heard: list[WorkerState] = []
        worker.on_change(lambda: [][0])
        worker.on_change(lambda: heard.append(worker.state))

        worker.stop(TIMEOUT)

        assert heard == [WorkerState.STOPPED]
        assert "a listener to the state of the worker failed" in caplog.text
