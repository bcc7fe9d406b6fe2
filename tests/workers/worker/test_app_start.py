"""The start of app workers: registration, lies, time-outs, and ends before they are ready."""

from __future__ import annotations

import logging
import os
import signal
from types import SimpleNamespace

import gevent
import msgspec
import pytest

from corosrv.base.errors import Misuse
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.setup import NEXT, WorkerState
from corosrv.workers.wire.calls import PoolCard
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from tests.support.waiting import wait_until
from tests.workers.worker.app_children.scripted import COMMAND, POOLS
from tests.workers.worker.app_handling import TIMEOUT, call, counters, ready, started, wait_for
from tests.workers.worker.predicting import is_alive, wait_for_death

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]


def failed_start(app_ref: str, pool: str | None = "default", **config: object) -> AppProcess:
    """Starts a worker to its failure; returns it when its process has ended."""
    with started(app_ref, pool, **config) as worker:
        wait_for(worker, WorkerState.SETUP_FAILED)
        assert worker.pid is None or wait_for_death(worker.pid) is None
        return worker


def encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def test_a_worker_registers_the_handlers_of_its_pool() -> None:
    with ready(pool="default") as worker:
        assert [card.name for card in worker.handlers] == ["first", "second", "third"]
        assert [group.handlers for group in worker.groups] == [(0, 2), (1,)]
        assert counters(worker) == (3, 0, 0, 0)
        assert (worker.id, worker.incarnation, worker.is_draining) == ("default/0", 1, False)
        assert list(worker.pools) == POOLS
        assert worker.setup.status == "succeeded"


def test_a_worker_without_a_pool_waits_until_one_is_chosen() -> None:
    with started(pool=None, start_timeout_s=60.0) as worker:
        wait_until(lambda: worker.pools)
        assert worker.state is WorkerState.STARTING
        assert worker.is_draining

        worker.choose("other")

        wait_for(worker, WorkerState.READY)
        assert worker.id == "other/0"
        assert call(worker, "tell").wait_until_over() == [None]


def test_the_time_between_load_and_choice_is_not_limited() -> None:
    with started(pool=None, start_timeout_s=60.0) as worker:
        wait_until(lambda: worker.pools)

        assert worker._setup_timer is None  # what would end it is not set


def test_the_import_and_the_start_of_a_pool_share_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("corosrv.workers.worker.parent.app_process.time", SimpleNamespace(monotonic=lambda: now[0]))
    with started("hangs_in_on_start", pool=None, start_timeout_s=100.0) as worker:
        now[0] = 99.9  # the import takes as long
        wait_until(lambda: worker.pools)

        worker.choose("default")

        wait_for(worker, WorkerState.SETUP_FAILED)
        assert worker.reason == "the set-up timed out after 100 s"


def test_a_pool_can_be_chosen_before_the_import_has_ended_but_once() -> None:
    with started(pool=None) as worker:
        worker.choose("other")
        with pytest.raises(Misuse):
            worker.choose("default")

        wait_for(worker, WorkerState.READY)

        assert worker.pool == "other"


def test_a_worker_learns_its_name() -> None:
    with ready(pool="other") as worker:
        told = call(worker, "tell")
        told.wait_until_over()

        assert told.parameters[0]["worker"] == "other/0"
        assert told.parameters[0]["pool"] == "other"


def test_a_pool_that_the_application_lacks_is_named() -> None:
    worker = failed_start("well", pool="ghost")

    assert worker.reason == "the application has no pool 'ghost'; it has default, other"


@pytest.mark.parametrize("app_ref", ["fails:ImportError: no module", "fails_in_on_start:ImportError: no module"])
def test_a_failed_start_says_why(app_ref: str) -> None:
    worker = failed_start(app_ref)

    assert worker.reason == "ImportError: no module"
    assert worker.setup.status == "failed"
    assert "ImportError: no module" in worker.setup.logs


@pytest.mark.parametrize("app_ref", ["exits:3", "exits_in_on_start:3"])
def test_a_worker_that_dies_while_it_starts_has_failed(app_ref: str) -> None:
    assert failed_start(app_ref).reason == "the worker crashed with exit code 3"


@pytest.mark.parametrize("app_ref", ["hangs", "hangs_in_on_start"])
def test_a_start_that_takes_too_long_is_ended(app_ref: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.app_process.UNSTARTED_PATIENCE", 0.1)

    worker = failed_start(app_ref, start_timeout_s=1.5)

    assert worker.reason == "the set-up timed out after 1.5 s"


def test_a_command_that_is_not_there_fails_the_start() -> None:
    assert "could not be started" in failed_start("well", command=("/nonexistent/python",)).reason


@pytest.mark.parametrize(
    ("app_ref", "reason"),
    [
        ("writes:GARBAGE", "protocol error on its control channel"),
        ("writes:TOO_LARGE", "a frame of 2147483647 bytes"),
        ("closes_control", "closed its control channel"),
        ("speaks_protocol:77", "the worker speaks protocol 77"),
        ("loads:[]", "the application has no handlers"),
        (f"loads:{encoded([PoolCard('a', [])])}", "pool 'a' has no handlers"),
        (f"loads:{encoded([PoolCard('default', [HandlerCard('m', concurrency=5000)])])}", "wants 5000 slots"),
        ('loads_raw:[{"name":"default","handlers":[{"name":7}]}]', "Expected `str`, got `int`"),
        (
            'loads_raw:[{"name":"p","handlers":[{"name":"m","inputs":[{"name":"x","datatype":"INT5","shape":[]}]}]}]',
            "INT5",
        ),
        ("loads_twice", "loaded twice"),
        ("registers:[]", "the worker registers [] for pool 'default'"),
        (f"registers:{encoded([HandlerCard('first')])}", "the worker registers ['model:first:']"),
        ("registers_unasked", "before their pool was chosen"),
    ],
)
def test_a_worker_that_lies_while_it_starts_is_ended(
    app_ref: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.app_process.UNSTARTED_PATIENCE", 0.1)

    assert reason in failed_start(app_ref).reason


def test_an_unknown_control_message_is_skipped() -> None:
    with ready("writes:UNKNOWN") as worker:
        assert call(worker).wait_until_over() == [None]


def test_a_second_registration_ends_the_worker() -> None:
    with started("registers_twice") as worker:
        wait_for(worker, WorkerState.DEFUNCT)

        assert "registered twice" in worker.reason


def test_what_is_printed_while_it_starts_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "corosrv.handler"), ready() as worker:
        assert worker.setup.logs == "imported\n"
        assert f"default/0[{worker.pid}] stdout: imported" in caplog.messages


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, []), (logging.DEBUG, ["worker default/0 is ready"])])
def test_a_change_of_state_is_left_to_the_pool_to_log(
    level: int, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level, "corosrv.worker"), ready():
        assert [message for message in caplog.messages if "is ready" in message] == lines


def test_a_flood_of_lines_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "corosrv.handler"), ready("prints_a_flood:100000") as worker:
        call(worker).wait_until_over()

        assert 0 < sum(message.endswith(": flood") for message in caplog.messages) < 10_000


def states_before_ready() -> list[str]:
    return ["hangs", "hangs_in_on_start", "is_stopped"]


@pytest.mark.parametrize("app_ref", states_before_ready())
def test_a_kill_before_it_is_ready_ends_it_with_nothing_left(app_ref: str) -> None:
    with started(app_ref) as worker:
        wait_until(lambda: worker.pools or worker.setup.logs)

        worker.kill()
        worker.stop(TIMEOUT)

        assert worker.state is WorkerState.STOPPED
        assert worker.setup.status == "failed"
        assert worker.pid is not None
        assert not is_alive(worker.pid)


@pytest.mark.parametrize("app_ref", states_before_ready())
def test_a_drain_before_it_is_ready_ends_it(app_ref: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corosrv.workers.worker.parent.app_process.UNSTARTED_PATIENCE", 0.1)
    with started(app_ref) as worker:
        wait_until(lambda: worker.pools or worker.setup.logs)

        worker.drain("scaled down")

        wait_for(worker, WorkerState.STOPPED)
        assert worker.reason == "scaled down"


def test_a_worker_that_waits_for_its_pool_stops_by_itself_on_a_drain() -> None:
    with started(pool=None) as worker:
        wait_until(lambda: worker.pools)

        worker.drain()

        wait_for(worker, WorkerState.STOPPED)


def test_a_worker_that_was_never_started_can_be_stopped_and_drained() -> None:
    for end in (AppProcess.kill, AppProcess.drain, lambda worker: worker.stop(1.0)):
        worker = AppProcess(AppWorkerConfig(app_ref="well", command=COMMAND), "default", "0", 1)

        end(worker)

        assert worker.state is WorkerState.STOPPED
        assert worker.pid is None


def test_a_kill_in_the_moment_of_the_start_leaves_nothing() -> None:
    worker = AppProcess(AppWorkerConfig(app_ref="well", command=COMMAND), "default", "0", 1)
    worker.start()
    worker.kill()

    gevent.idle()

    assert worker.state is WorkerState.STOPPED
    assert worker.pid is None


@pytest.mark.parametrize("app_ref", ["hangs", "hangs_in_on_start"])
def test_a_kill_9_while_it_starts_is_seen(app_ref: str) -> None:
    with started(app_ref) as worker:
        wait_until(lambda: worker.pools or worker.setup.logs)
        assert worker.pid is not None

        os.kill(worker.pid, signal.SIGKILL)

        wait_for(worker, WorkerState.SETUP_FAILED)
        assert worker.reason == "the worker crashed with signal 9 (SIGKILL)"


def test_every_state_but_the_last_ones_leads_to_an_end() -> None:
    ends = {state for state, following in NEXT.items() if not following}

    assert ends == {WorkerState.SETUP_FAILED, WorkerState.DEFUNCT, WorkerState.STOPPED}
    for state, following in NEXT.items():
        assert state in ends or following & ends
    assert NEXT[WorkerState.DRAINING] == {WorkerState.DEFUNCT, WorkerState.STOPPED}
