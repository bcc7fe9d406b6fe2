"""Pools of scripted worker processes under a real dispatcher: started, replaced, drained, ended."""

from __future__ import annotations

import logging
import re
import time

import gevent
import pytest
from gevent.event import AsyncResult

from corosrv.base.errors import (
    Conflict,
    NotFound,
    Refused,
    SettingsError,
    ShuttingDown,
    Starting,
    Unavailable,
    WorkerLost,
)
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.manager.manager import Manager, ManagerSettings
from corosrv.workers.manager.plan import Claim, PlaceState
from tests.support.waiting import wait_until
from tests.workers.manager.scripted import Script, call, end_of, managed, pool_card

READY, DRAINING, STOPPED = WorkerState.READY, WorkerState.DRAINING, WorkerState.STOPPED


def ready(script: Script, *ids: str) -> bool:
    return wait_until(lambda: sorted(script.ids(READY)) == sorted(ids), f"{ids}, not {script.ids(READY)}")


def test_the_first_process_learns_the_pools_and_becomes_a_worker():
    with managed(pool_card("default"), pool_card("other", min_workers=1)) as (manager, script):
        ready(script, "default/0", "other/0")

        assert len(script.workers) == 2
        assert [pool.name for pool in manager.pools] == ["default", "other"]
        assert manager.state is State.READY


def test_the_pool_of_functions_has_as_many_workers_as_the_operator_says():
    with managed(pool_card("default"), pool_card("other", min_workers=1, max_workers=4), workers=3) as (_, script):
        ready(script, "default/0", "default/1", "default/2", "other/0")


def test_a_worker_that_dies_is_replaced_in_its_place_by_the_next_incarnation():
    with managed(pool_card(), workers=2) as (manager, script):
        ready(script, "default/0", "default/1")

        script.worker("default/0").crash("signal 9")
        ready(script, "default/0", "default/1")

        assert manager.place("default/0").incarnation == 2
        assert manager.pool("default").restarts == {"lost": 1}


def test_the_log_tells_of_each_life_once_with_pool_worker_pid_and_time(caplog):
    with caplog.at_level(logging.INFO, "corosrv"), managed(pool_card()) as (manager, script):
        ready(script, "default/0")
        first = script.worker("default/0")
        first.crash("signal 9")
        ready(script, "default/0")
        second = script.worker("default/0")
        manager.drain("default/0")
        wait_until(lambda: second.state is STOPPED)

        life = "pool default: worker default/0 (pid {}), 0.0 s old, {}"
        lines = [re.sub(r"[0-9.]+ s\b", "0.0 s", message) for message in caplog.messages]
        for worker in (first, second):
            assert lines.count(life.format(worker.pid, "is ready")) == 1
        assert lines.count(life.format(first.pid, "failed: signal 9; the pool starts again in 0.0 s")) == 1
        assert [line for line in lines if f"(pid {second.pid})" in line][1:] == [
            life.format(second.pid, "drains: its replacement is ready"),
            life.format(second.pid, "has ended: it was drained"),
        ]


def test_no_call_goes_to_a_worker_that_died():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")
        script.worker("default/0").crash()

        reader = call(manager)
        ready(script, "default/0")
        script.worker("default/0").finish()

        assert end_of(reader).error is None


def test_a_pool_that_crashes_and_crashes_says_so_to_its_callers():
    script = Script([pool_card("bad"), pool_card("good")])
    with managed(script=script) as (manager, _):
        ready(script, "bad/0", "good/0")
        pool = manager.pool("bad")
        for _ in range(5):
            pool.memory.crashes.retry_at = 0.0
            manager._wakeup()
            wait_until(lambda: "bad/0" in script.ids(READY))
            script.worker("bad/0").crash()

        with pytest.raises(Unavailable, match="crashlooping"):
            call(manager, "bad")
        assert pool.memory.crashes.is_looping
        assert "good/0" in script.ids(READY)


def test_a_handler_that_kills_its_process_costs_its_pool_no_pause():
    with managed(pool_card("default", "killer", "other")) as (manager, script):
        for _ in range(2):
            ready(script, "default/0")
            killed = call(manager, "killer")
            script.worker("default/0").crash()
            assert isinstance(end_of(killed).error, WorkerLost)
        ready(script, "default/0")

        assert not manager.pool("default").memory.crashes.has_crashed
        with pytest.raises(Unavailable, match="quarantine"):
            call(manager, "killer")
        other = call(manager, "other")
        script.worker("default/0").finish()
        assert end_of(other).error is None


def test_an_empty_pool_is_ready_and_its_first_call_starts_a_worker():
    with managed(pool_card("default", min_workers=0, max_workers=1)) as (manager, script):
        wait_until(lambda: script.ids(STOPPED))
        assert manager.state is State.READY

        reader = call(manager)
        ready(script, "default/0")
        script.worker("default/0").finish()

        assert end_of(reader).error is None


def test_a_drained_worker_ends_when_its_replacement_is_ready_and_its_calls_have_ended():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")
        reader = call(manager)
        old = script.worker("default/0")

        manager.drain("default/0")
        ready(script, "default/1")
        wait_until(lambda: old.state is DRAINING)
        assert manager.place("default/0").state is PlaceState.DRAINING

        old.finish()
        assert end_of(reader).error is None
        assert old.state is STOPPED
        assert script.ids(READY) == ["default/1"]


def test_a_replacement_that_does_not_fit_comes_after_the_old_worker():
    with managed(pool_card("default", gpus=1.0), budget=Claim(1, 0)) as (manager, script):
        ready(script, "default/0")
        old = script.worker("default/0")

        manager.drain("default/0")
        wait_until(lambda: old.state is STOPPED)

        ready(script, "default/0")
        assert manager.place("default/0").incarnation == 2


def test_draining_every_worker_of_a_pool_under_calls_loses_none():
    with managed(pool_card("default", slots=2), workers=3) as (manager, script):
        ready(script, "default/0", "default/1", "default/2")
        readers = [call(manager) for _ in range(20)]

        def work() -> None:
            while True:
                for worker in [worker for worker in script.workers if worker.calls]:
                    worker.finish()
                gevent.sleep(0.002)

        working = gevent.spawn(work)
        for id in ("default/0", "default/1", "default/2"):
            manager.drain(id)
        wait_until(lambda: len(script.ids(STOPPED)) == 3)
        errors = [end_of(reader).error for reader in readers]
        working.kill()

        assert errors == [None] * 20
        assert len(script.ids(READY)) == 3


def test_a_removed_worker_is_killed_and_replaced_at_once():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")

        with pytest.raises(Conflict):
            manager.remove("default/0", 7)
        manager.remove("default/0", 1)
        ready(script, "default/0")

        assert manager.place("default/0").incarnation == 2
        assert not manager.pool("default").memory.crashes.has_crashed


def test_an_operator_scales_a_pool_up_and_down():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")

        manager.scale("default", 3, 5)
        ready(script, "default/0", "default/1", "default/2")
        manager.scale("default", 1, 1)
        wait_until(lambda: len(script.ids(READY)) == 1)

        with pytest.raises(Refused, match="0 <= min <= max"):
            manager.scale("default", 3, 2)
        with pytest.raises(NotFound):
            manager.scale("nothing", 1, 1)


def test_a_pool_scaled_to_nothing_refuses_calls():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")
        manager.scale("default", 0, 0)
        wait_until(lambda: not script.ids(READY))

        with pytest.raises(Unavailable, match="may have no worker"):
            call(manager)


def test_a_pool_that_needs_more_than_the_host_has_says_so_and_the_others_run():
    cards = pool_card("huge", gpus=2.0), pool_card("small")
    with managed(*cards, budget=Claim(1, 0)) as (manager, script):
        ready(script, "small/0")

        assert manager.pool("huge").reason.endswith("a worker needs 2 GPU, and the host may give 1 GPU")
        with pytest.raises(Unavailable, match="the host may give 1 GPU"):
            call(manager, "huge")


def test_loaded_models_leave_workers_less_memory():
    held = [6e8]
    card = pool_card("default", memory_mb=500.0)
    with managed(card, budget=Claim(0, 1e9), memory_elsewhere=lambda: held[0]) as (manager, script):
        wait_until(lambda: manager.pools)
        assert script.ids(READY) == []
        assert manager.held_memory == 0

        held[0] = 1e8
        manager._wakeup()

        ready(script, "default/0")
        assert manager.held_memory == 5e8


def test_an_application_that_cannot_be_imported_is_tried_again_and_named():
    told = AsyncResult()
    script = Script([pool_card()], failure="No module named 'nothing'")
    passed = [0.0]
    options = {"on_unstartable": told.set, "clock": lambda: passed[0] + time.monotonic()}
    with managed(script=script, start_timeout=1000.0, **options) as (manager, _):
        wait_until(lambda: len(script.workers) >= 2)
        passed[0] = 1000.0
        manager._wakeup()

        assert told.get(timeout=30) == "No module named 'nothing'"
        assert manager.failure == "No module named 'nothing'"


def test_what_an_application_raises_at_its_import_is_not_told_to_clients():
    script = Script([pool_card()], failure="No module named 'nothing'")
    with managed(script=script) as (manager, _):
        with pytest.raises(Starting, match=r"^the application is being imported$"):
            call(manager)
        wait_until(lambda: manager.failure)

        for refused in (manager.check, lambda: call(manager)):
            with pytest.raises(Starting, match=r"^the application could not be imported; the server's log says why$"):
                refused()


def test_a_model_is_unknown_only_once_the_application_is_imported():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")

        with pytest.raises(NotFound):
            call(manager, "nobody")


def test_why_the_processes_of_a_pool_fail_is_not_told_to_clients():
    script = Script([pool_card()], starts=False)
    with managed(script=script) as (manager, _):
        wait_until(lambda: script.workers)
        script.workers[0].load()
        with pytest.raises(Unavailable, match=r"^no worker of the pool default is ready: one is starting$"):
            manager.check()
        script.workers[0].fail("RuntimeError: no weights in /secret/path")
        wait_until(lambda: manager.pools[0].memory.crashes.last_reason)

        with pytest.raises(Unavailable, match=r"is ready: its processes fail; the server.s log says why$"):
            manager.check()


def test_a_pool_that_cannot_start_ends_the_server_once_and_with_its_reason():
    told: list[str] = []
    script = Script([pool_card("default"), pool_card("other")], starts=False)
    passed = [0.0]
    options = {"on_unstartable": told.append, "clock": lambda: passed[0] + time.monotonic()}
    with managed(script=script, start_timeout=1000.0, **options) as (manager, _):
        wait_until(lambda: script.workers)
        script.workers[0].load()
        wait_until(lambda: len(script.workers) >= 2)
        for worker in script.workers:
            worker.fail("on_start raised ValueError")
        passed[0] = 1000.0
        manager._wakeup()
        wait_until(lambda: told)

        assert told == ["pool default: on_start raised ValueError; pool other: on_start raised ValueError"]
        assert manager.state is State.STARTING


def test_a_server_whose_pools_are_ready_or_need_nobody_is_not_given_up():
    told: list[str] = []
    with managed(pool_card("default", min_workers=0), start_timeout=3.0, on_unstartable=told.append) as (manager, _):
        wait_until(lambda: manager._give_up_at is None)

        assert told == []


def test_stopping_lets_calls_that_wait_and_run_end_first():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")
        readers = [call(manager), call(manager)]

        manager.stop()
        assert manager.state is State.DRAINING
        with pytest.raises(ShuttingDown):
            call(manager)
        for _ in readers:
            wait_until(lambda: script.worker("default/0").calls)
            script.worker("default/0").finish()
        wait_until(lambda: not manager.is_ending)

        assert [end_of(reader).error for reader in readers] == [None, None]
        assert script.ids(*set(WorkerState) - {STOPPED}) == []


def test_a_second_stop_skips_the_grace():
    with managed(pool_card(), shutdown_grace=3600.0) as (manager, script):
        ready(script, "default/0")
        reader = call(manager, timeout=600)

        manager.stop()
        gevent.idle()
        assert manager.is_ending
        manager.stop()
        wait_until(lambda: not manager.is_ending)

        assert end_of(reader).error is not None
        assert script.ids(STOPPED) == ["default/0"]


def test_the_grace_ends():
    with managed(pool_card(), shutdown_grace=0.05) as (manager, script):
        ready(script, "default/0")
        reader = call(manager, timeout=600)

        manager.stop()
        wait_until(lambda: not manager.is_ending)

        assert end_of(reader).error is not None


def test_nobody_is_replaced_once_the_workers_are_being_ended():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")

        manager.stop()
        wait_until(lambda: not manager.is_ending)
        manager._wakeup()
        gevent.idle()

        assert len(script.workers) == 1


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(SettingsError, match="workers must be from 1"):
        ManagerSettings(workers=0)
    with pytest.raises(SettingsError, match="start_timeout must be at least 0"):
        ManagerSettings(start_timeout=-1)


def test_unknown_workers_are_not_found():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")

        for id in ("default/1", "other/0", "default", "", "default/0/"):
            with pytest.raises(NotFound):
                manager.drain(id)


def test_a_look_that_fails_is_not_the_last(monkeypatch):
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")
        look, broken = Manager._plan, [True]
        monkeypatch.setattr(Manager, "_plan", lambda self, now: 1 / 0 if broken.pop() else look(self, now))
        manager._wakeup()
        wait_until(lambda: not broken)
        monkeypatch.undo()

        script.worker("default/0").crash()

        ready(script, "default/0")


def test_the_start_of_the_first_process_says_nothing_about_later_ones():
    with managed(pool_card("default", cold_start_ms=7000.0)) as (manager, script):
        ready(script, "default/0")
        assert manager.pool("default").memory.cold_start == 7.0

        manager.scale("default", 2, 2)
        ready(script, "default/0", "default/1")

        assert manager.pool("default").memory.cold_start < 5


def test_a_worker_that_has_ended_is_not_offered_any_more():
    with managed(pool_card()) as (manager, script):
        ready(script, "default/0")
        old = script.worker("default/0")

        manager.scale("default", 0, 0)
        wait_until(lambda: old.state is STOPPED)

        assert not manager.dispatcher.remove_host(old)


def test_a_worker_that_makes_room_is_not_started_again_when_the_room_is_free():
    now = [0.0]
    cards = [
        pool_card("low", gpus=1.0, min_workers=0, max_workers=1, priority=7),
        pool_card("high", gpus=1.0, min_workers=0, max_workers=1),
    ]
    with managed(*cards, budget=Claim(1, 0), clock=lambda: now[0] + time.monotonic()) as (manager, script):
        wait_until(lambda: manager.pools)
        readers = [call(manager, "low")]
        ready(script, "low/0")
        script.worker("low/0").finish()
        wait_until(lambda: manager.pool("low").snapshot.workers[0].idle_since)

        now[0] += 61.0  # idle for its time, but its load has to be watched for longer
        manager.pool("low").memory.note_start(now[0] + time.monotonic())
        readers.append(call(manager, "high"))
        ready(script, "high/0")
        script.worker("high/0").finish()
        manager.scale("high", 0, 0)
        wait_until(lambda: not script.ids())
        manager._wakeup()
        gevent.idle()

        assert [end_of(reader).error for reader in readers] == [None, None]
        assert manager.pool("low").memory.target == 0
        assert script.ids(WorkerState.STARTING, READY) == []


def test_a_start_that_fails_while_it_is_given_up_is_no_crash():
    script = Script([pool_card()], starts=False)
    with managed(script=script) as (manager, _):
        wait_until(lambda: script.workers)
        script.workers[0].load()
        place = wait_until(lambda: manager.pools and manager.place("default/0"))
        place._enter(PlaceState.STOPPING)  # it was told to end, and fails before it has heard of that

        script.workers[0].fail("on_start raised ValueError")

        assert place.state is PlaceState.GONE
        assert not manager.pool("default").memory.crashes.has_crashed
