"""App workers that die, lie, hang or fall silent: every item ends once, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time

import gevent
import pytest

from corosrv.base.errors import CallCancelled, CorosrvError, DeadlinePassed, HandlerFailed, NotHandedOver, WorkerLost
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.dispatch.host import HandedCall
from corosrv.workers.manager.plan import PlaceState
from corosrv.workers.manager.pool_memory import Place
from corosrv.workers.worker.parent.app_process import AppProcess
from tests.support.waiting import wait_until
from tests.workers.worker.app_handling import TIMEOUT, Recorder, call, counters, hand, item, ready, started, wait_for
from tests.workers.worker.predicting import is_alive, wait_for_death

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]


def is_gone(worker: AppProcess) -> bool:
    assert worker.pid is not None
    wait_for_death(worker.pid)
    return not is_alive(worker.pid)


# Death.


@pytest.mark.parametrize(
    ("do", "parameters", "reason"),
    [
        ("exit", {"code": 3}, "crashed with exit code 3"),
        ("exit", {"code": 0}, "crashed with exit code 0"),
        ("die", {"signal": int(signal.SIGKILL)}, "crashed with signal 9 (SIGKILL)"),
        ("die", {"signal": int(signal.SIGSEGV)}, "crashed with signal 11 (SIGSEGV)"),
        ("abort", {}, "crashed with signal 6 (SIGABRT): out of cheese"),
        ("exit_in_a_frame", {}, "crashed with exit code 1"),
        ("close_control", {}, "closed its control channel"),
        ("write_to_control", {"what": "GARBAGE"}, "protocol error on its control channel"),
        ("write_to_control", {"what": "TOO_LARGE"}, "a frame of 2147483647 bytes"),
    ],
)
def test_a_dead_worker_ends_every_item_of_every_call_once(do: str, parameters: dict[str, object], reason: str) -> None:
    with ready() as worker:
        other = hand(worker, item("wait_for_cancel"), item("wait_for_cancel"))
        other.wait_for_outputs()

        errors = call(worker, do, **parameters).wait_until_over() + other.wait_until_over()

        assert [type(error) for error in errors] == [WorkerLost] * 3
        assert reason in worker.reason
        assert not any(reason in str(error) for error in errors)  # clients are told nothing of the inside
        assert worker.state is WorkerState.DEFUNCT
        assert worker.is_draining
        assert counters(worker) == (0, 0, 3, 0)
        assert worker.in_flight == 0
        assert is_gone(worker)


def test_a_kill_9_is_told_to_callers_before_any_lease_expires() -> None:
    with ready(lease_s=600.0) as worker:
        waiting = [call(worker, "wait_for_cancel"), call(worker, "hang")]
        for recorder in waiting:
            recorder.wait_for_outputs()
        assert worker.pid is not None

        os.kill(worker.pid, signal.SIGKILL)

        for recorder in waiting:
            assert isinstance(recorder.wait_until_over()[0], WorkerLost)


def test_a_kill_9_of_an_idle_worker_is_noticed_before_its_lease_expires() -> None:
    with ready(lease_s=600.0) as worker:
        assert worker.pid is not None

        os.kill(worker.pid, signal.SIGKILL)

        wait_for(worker, WorkerState.DEFUNCT)


def test_an_item_that_ended_before_the_crash_has_not_failed() -> None:
    with ready() as worker:
        assert call(worker, "end_and_exit").wait_until_over() == [None]

        wait_for(worker, WorkerState.DEFUNCT)


def test_a_cancelled_call_of_a_dead_worker_was_cancelled() -> None:
    with ready() as worker:
        hanging = call(worker, "hang")
        hanging.wait_for_outputs()
        hanging.call.cancel()

        worker.kill()

        assert isinstance(hanging.wait_until_over()[0], CallCancelled)


def test_an_unread_call_of_a_dead_worker_ends_too() -> None:
    with ready() as worker:
        recorder = Recorder()
        recorder.has_room.clear()
        recorder.permit = worker.groups[0].permits.try_acquire()
        worker.start_call(recorder.permit, HandedCall(0, [item("stream", n=1000, size=100_000)]), recorder)
        recorder.wait_for_outputs()

        worker.kill()

        assert isinstance(recorder.wait_until_over()[0], WorkerLost)


def test_a_call_that_is_started_on_a_dead_worker_is_refused_and_not_lost() -> None:
    with ready() as worker:
        permit = worker.groups[0].permits.try_acquire()
        assert permit is not None
        worker.kill()
        wait_for(worker, WorkerState.STOPPED)
        recorder = Recorder()
        recorder.permit = permit

        worker.start_call(permit, HandedCall(0, [item()]), recorder)

        assert not recorder.ends, "a call must not end before its caller knows it"
        assert type(recorder.wait_until_over()[0]) is NotHandedOver
        assert counters(worker)[1] == 0


# Lies on a lane.


@pytest.mark.parametrize(
    ("do", "parameters", "reason"),
    [
        ("write", {"what": "GARBAGE"}, "protocol error: no message"),
        ("write", {"what": "TOO_LARGE"}, "a frame of 2147483647 bytes"),
        ("close_lane", {}, "closed its channel"),
        ("end_another", {}, "CallEnd came for another call"),
        ("end_no_item", {"item": 1}, "CallEnd came for item 1 of a call of 1"),
        ("end_no_item", {"item": -1}, "CallEnd came for item -1"),
        ("fail_in_a_new_way", {}, "the unknown kind 'melancholy'"),
        ("lie_about_size", {}, "has 4 bytes, where 5 were announced"),
        ("attach_nothing", {}, "0 descriptors came"),
        ("attach_twice", {}, "2 descriptors came"),
        ("attach_unsealed", {}, "not sealed"),
        ("attach_a_pipe", {}, "in no memory file"),
    ],
)
def test_a_lane_that_lies_loses_its_call_and_no_other(do: str, parameters: dict[str, object], reason: str) -> None:
    with ready() as worker:
        other = call(worker, "wait_for_cancel")
        other.wait_for_outputs()

        (error,) = call(worker, do, **parameters).wait_until_over()

        assert isinstance(error, WorkerLost)
        assert worker.state is WorkerState.DRAINING
        assert reason in worker.reason
        assert not other.ends
        other.call.cancel()
        assert isinstance(other.wait_until_over()[0], CallCancelled)
        wait_for(worker, WorkerState.DEFUNCT)
        assert counters(worker) == (0, 0, 0, 0)
        assert is_gone(worker)


@pytest.mark.parametrize("do", ["end_twice", "answer_after_the_end"])
def test_a_lane_that_talks_while_nothing_runs_is_poisoned(do: str) -> None:
    with ready() as worker:
        assert call(worker, do).wait_until_over() == [None]

        wait_for(worker, WorkerState.DEFUNCT)
        assert "came while nothing ran" in worker.reason


def test_an_item_cannot_end_twice() -> None:
    with ready() as worker:
        batch = hand(worker, item("end_an_item_twice"), item())

        first, second = batch.wait_until_over()

        assert first is None
        assert isinstance(second, WorkerLost)


def test_an_unknown_message_and_a_needless_descriptor_do_a_slot_no_harm() -> None:
    with ready() as worker:
        assert call(worker, "write", what="UNKNOWN").wait_until_over() == [None]
        assert call(worker, "attach_to_an_end").wait_until_over() == [None]
        assert call(worker).wait_until_over() == [None]
        assert counters(worker) == (3, 0, 0, 0)


def test_an_output_that_is_no_tensor_fails_its_call_and_keeps_the_slot(caplog: pytest.LogCaptureFixture) -> None:
    with ready() as worker:
        recorder = hand(worker, item("give_no_tensor", request_id="r5"))

        (error,) = recorder.wait_until_over()

        assert isinstance(error, HandlerFailed)
        assert recorder.outputs == [[]]
        assert "request r5: the handler gave no tensor: tensor 'x' has 3 bytes" in caplog.text
        assert call(worker).wait_until_over() == [None]
        assert counters(worker) == (3, 0, 0, 0)


@pytest.mark.parametrize("slot", [0, 2])
def test_a_slot_that_the_worker_gives_up_ends_the_worker(slot: int) -> None:
    with started(f"loses_a_slot:{slot}") as worker:
        wait_for(worker, WorkerState.DEFUNCT)

        assert worker.reason == "the slot is torn"


def test_a_slot_that_is_lost_while_nothing_runs_is_a_failure_of_its_place(caplog: pytest.LogCaptureFixture) -> None:
    place = Place("default", 0)
    states = []
    with started("loses_a_slot:0") as worker:
        place.take(worker, 0.0)
        worker.on_change(lambda: states.append(place.state) if place.follow(0.0) else None)

        wait_for(worker, WorkerState.DEFUNCT)

    assert states == [PlaceState.READY, PlaceState.FAILED]
    assert "a listener to the worker's state failed" not in caplog.text


def test_a_slot_that_the_worker_never_had_is_a_lie() -> None:
    with started("loses_a_slot:3") as worker:
        wait_for(worker, WorkerState.DEFUNCT)

        assert "no such slot" in worker.reason


# Hanging.


def test_a_handler_that_ignores_its_cancel_poisons_the_worker() -> None:
    with ready(hang_grace_s=0.3) as worker:
        hanging, other = call(worker, "hang"), call(worker, "wait_for_cancel", timeout=60.0)
        hanging.wait_for_outputs()
        cancelled = time.monotonic()
        hanging.call.cancel()

        assert isinstance(hanging.wait_until_over()[0], CallCancelled)

        assert hanging.ended_at - cancelled >= 0.3
        assert worker.state is WorkerState.DRAINING
        assert "handler 'first' went on for 0.3 s" in worker.reason
        assert not other.ends  # it has until its deadline
        assert worker.groups[1].permits.try_acquire() is None
        other.call.cancel()
        other.wait_until_over()
        wait_for(worker, WorkerState.DEFUNCT)
        assert is_gone(worker)


def test_a_worker_takes_no_calls_from_the_moment_that_a_slot_is_poisoned() -> None:
    with ready(hang_grace_s=0.1) as worker:

        class Witness(Recorder):
            was_draining = False

            def on_end(self, item: int, error: CorosrvError | None) -> None:
                self.was_draining = worker.is_draining
                super().on_end(item, error)

        witness = Witness()
        witness.permit = worker.groups[0].permits.try_acquire()
        witness.call = worker.start_call(witness.permit, HandedCall(0, [item("hang")]), witness)
        witness.call.cancel()

        witness.wait_until_over()

        assert witness.was_draining


def test_a_handler_that_ignores_its_deadline_poisons_the_worker() -> None:
    with ready(hang_grace_s=0.2) as worker:
        hanging = call(worker, "hang", timeout=0.1)

        assert isinstance(hanging.wait_until_over()[0], DeadlinePassed)

        wait_for(worker, WorkerState.DEFUNCT)


def test_a_handler_that_ends_within_its_grace_is_spared() -> None:
    with ready(hang_grace_s=5.0) as worker:
        late = call(worker, "end_later", seconds=0.3)
        late.wait_for_outputs()

        late.call.cancel()

        assert late.wait_until_over() == [None]
        assert worker.state is WorkerState.READY


def test_a_batch_goes_on_while_one_item_of_it_may() -> None:
    with ready(hang_grace_s=0.1, lease_s=2.0) as worker:
        batch = hand(worker, item("hang"), item("hang"))
        batch.wait_for_outputs()
        batch.call.cancel(0)
        beats = worker.last_heartbeat

        wait_until(lambda: worker.last_heartbeat and (beats is None or worker.last_heartbeat > beats + 0.5))
        assert not batch.ends

        batch.call.cancel(1)
        first, second = batch.wait_until_over()
        assert isinstance(first, CallCancelled)
        assert isinstance(second, CallCancelled)


def test_others_on_a_poisoned_worker_have_until_their_deadlines_and_no_longer() -> None:
    with ready(hang_grace_s=0.1) as worker:
        hanging, other = call(worker, "hang"), call(worker, "wait_for_cancel", timeout=1.5)
        deadline = time.monotonic() + 1.5
        hanging.wait_for_outputs()
        hanging.call.cancel()
        hanging.wait_until_over()

        (error,) = other.wait_until_over()

        assert isinstance(error, DeadlinePassed)
        assert other.ended_at >= deadline - 0.1
        wait_for(worker, WorkerState.DEFUNCT)


def test_others_without_a_deadline_do_not_keep_a_poisoned_worker_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.app_watch.POISONED_GRACE", 0.3)
    with ready(hang_grace_s=0.1) as worker:
        hanging, other = call(worker, "hang"), call(worker, "wait_for_cancel")
        hanging.wait_for_outputs()
        hanging.call.cancel()

        assert isinstance(other.wait_until_over()[0], WorkerLost)
        assert worker.state is WorkerState.DEFUNCT


# Silence.


def test_a_stopped_worker_is_lost_when_its_lease_expires() -> None:
    with ready(lease_s=0.5) as worker:
        waiting = call(worker, "wait_for_cancel")
        waiting.wait_for_outputs()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)

        assert isinstance(waiting.wait_until_over()[0], WorkerLost)

        assert worker.state is WorkerState.DEFUNCT
        assert worker.reason == "no heartbeat came for 0.5 s"
        assert is_gone(worker)


def test_a_worker_whose_heart_has_stopped_is_lost_though_it_answers() -> None:
    with ready(lease_s=0.5) as worker:
        assert call(worker, "stop_beating").wait_until_over() == [None]

        wait_for(worker, WorkerState.DEFUNCT)


def test_a_worker_with_a_heartbeat_keeps_its_lease() -> None:
    with ready(lease_s=2.0) as worker:  # forty heartbeats, of which a busy machine may swallow some
        wait_until(lambda: worker.last_heartbeat)
        first = worker.last_heartbeat
        assert first is not None

        wait_until(lambda: worker.last_heartbeat is not None and worker.last_heartbeat > first + 2.5)

        assert worker.state is WorkerState.READY


def test_leases_begin_anew_after_the_server_itself_stood_still() -> None:
    with ready(lease_s=1.5) as worker:
        wait_until(lambda: worker.last_heartbeat)
        time.sleep(2.5)  # holds the hub: as if this process had been stopped
        beats = worker.last_heartbeat

        wait_until(lambda: worker.last_heartbeat != beats)

        assert worker.state is WorkerState.READY
        assert call(worker).wait_until_over() == [None]


# The end that somebody wants.


def test_a_drained_idle_worker_runs_its_on_stop_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "corosrv.handler"), ready(stop_grace_s=7.0) as worker:
        worker.drain("scaled down")
        assert worker.is_draining

        wait_for(worker, WorkerState.STOPPED)

        assert worker.reason == "scaled down"
        assert any("on_stop has 7000 ms" in message for message in caplog.messages)
        assert counters(worker) == (0, 0, 0, 0)
        assert is_gone(worker)
        worker.drain()
        worker.stop(TIMEOUT)
        worker.kill()


def test_a_drain_lets_running_calls_end_and_takes_no_new_ones() -> None:
    with ready() as worker:
        running = call(worker, "wait_for_cancel")
        running.wait_for_outputs()
        permit = worker.groups[1].permits.try_acquire()
        assert permit is not None

        worker.drain()
        worker.drain()

        assert worker.state is WorkerState.DRAINING
        assert counters(worker) == (0, 0, 0, 2)
        assert all(group.permits.try_acquire() is None for group in worker.groups)
        refused = Recorder()
        refused.permit = permit
        worker.start_call(permit, HandedCall(1, [item()]), refused)
        assert type(refused.wait_until_over()[0]) is NotHandedOver
        assert not running.ends
        running.call.cancel()
        assert isinstance(running.wait_until_over()[0], CallCancelled)
        wait_for(worker, WorkerState.STOPPED)


def test_a_stop_gives_running_calls_their_time_and_no_more() -> None:
    with ready() as worker:
        running = call(worker, "wait_for_cancel")
        running.wait_for_outputs()
        began = time.monotonic()

        worker.stop(0.3)

        assert time.monotonic() - began >= 0.3
        assert isinstance(running.wait_until_over()[0], WorkerLost)
        assert worker.state is WorkerState.STOPPED


def test_a_worker_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.app_process.STOP_MARGIN", 0.1)
    with ready("never_stops", stop_grace_s=0.2) as worker:
        worker.stop(0.1)

        assert worker.state is WorkerState.STOPPED
        assert is_gone(worker)


def test_a_kill_ends_a_stop_that_waits() -> None:
    with ready("never_stops", stop_grace_s=60.0) as worker:
        stopping = gevent.spawn(worker.stop, 60.0)
        gevent.idle()

        worker.kill()

        stopping.get(timeout=TIMEOUT)
        assert worker.state is WorkerState.STOPPED


@pytest.mark.parametrize("draining", [False, True])
def test_a_kill_9_of_a_worker_that_drains_is_a_crash_only_while_calls_run(draining: bool) -> None:
    with ready() as worker:
        running = call(worker, "wait_for_cancel")
        running.wait_for_outputs()
        if draining:
            worker.drain()
        assert worker.pid is not None

        os.kill(worker.pid, signal.SIGKILL)

        assert isinstance(running.wait_until_over()[0], WorkerLost)
        assert worker.state is WorkerState.DEFUNCT
