"""Workers that others have started: who they are, what they serve, and when they are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from corosrv.base.errors import NotFound, ShuttingDown, Unavailable
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.manager.joined import MOST_JOINED
from corosrv.workers.manager.manager import Manager
from corosrv.workers.manager.plan import Claim, PlaceState
from tests.support.waiting import wait_until
from tests.workers.manager.scripted import Script, ScriptedWorker, call, end_of, managed, pool_card


@dataclass
class Host:
    """A manager, and the script of what joins it."""

    manager: Manager
    script: Script

    def join(self, address: str = "") -> ScriptedWorker:
        worker = self.manager.joined.add(lambda place, number: self.script.make("joined", place, number), address)
        worker.start()
        return worker


@pytest.fixture
def host() -> Iterator[Host]:
    with managed(pool_card("own"), has_app=False) as (manager, _):
        yield Host(manager, Script([pool_card("joined", "add")]))


def test_a_server_whose_workers_only_join_is_ready_without_any(host: Host):
    assert host.manager.state is State.READY
    host.manager.check()


def test_what_a_joined_worker_offers_is_served(host: Host):
    worker = host.join()
    wait_until(lambda: worker.state is WorkerState.READY)

    reader = call(host.manager, "add")
    worker.finish()

    assert end_of(reader).error is None
    assert [place.id for place in host.manager.shown_places] == ["joined/0"]


def test_a_joined_worker_that_has_left_serves_no_more_and_its_place_is_taken_again(host: Host):
    first, second = host.join(), host.join()
    wait_until(lambda: second.state is WorkerState.READY)
    first.crash()
    assert [place.state for place in host.manager.shown_places] == [PlaceState.FAILED, PlaceState.READY]
    second.drain("it leaves")
    with pytest.raises(Unavailable):
        call(host.manager, "add")
    assert not host.manager.dispatcher.remove_host(second), "it is forgotten already"

    third = host.join()
    wait_until(lambda: third.state is WorkerState.READY)

    assert (third.id, third.incarnation) == ("joined/0", 2)
    assert [place.id for place in host.manager.shown_places] == ["joined/0"]
    with pytest.raises(NotFound):
        host.manager.place("joined/1")


def test_a_joined_worker_is_drained_and_nobody_is_started_for_it(host: Host):
    worker = host.join()
    wait_until(lambda: worker.state is WorkerState.READY)

    host.manager.drain("joined/0")

    assert worker.state is WorkerState.STOPPED
    assert host.manager.shown_places == []


def test_joined_workers_beside_an_application_change_nothing_about_its_pools():
    with managed(pool_card("default", "add"), workers=1) as (manager, script):
        wait_until(lambda: script.ids() == ["default/0"])
        host = Host(manager, Script([pool_card("joined", "add")]))

        worker = host.join()

        wait_until(lambda: worker.state is WorkerState.READY)
        assert [place.id for place in manager.shown_places] == ["default/0", "joined/0"]
        worker.crash()
        assert manager.state is State.READY
        assert script.ids() == ["default/0"]


def test_no_more_join_than_may(host: Host):
    host.script.starts = False
    for _ in range(MOST_JOINED):
        host.join()

    with pytest.raises(Unavailable, match=f"{MOST_JOINED} workers have joined"):
        host.join()


def test_nobody_joins_a_server_that_stops(host: Host):
    worker = host.join()
    wait_until(lambda: worker.state is WorkerState.READY)

    host.manager.stop()

    with pytest.raises(ShuttingDown):
        host.join()
    wait_until(lambda: worker.state is WorkerState.STOPPED)
    wait_until(lambda: not host.manager.is_ending)


def test_a_closed_manager_leaves_no_joined_worker(host: Host):
    host.script.starts = False
    worker = host.join()

    host.manager.close()

    assert worker.state is WorkerState.STOPPED


def test_what_runs_on_another_machine_claims_nothing_of_this_one():
    with managed(pool_card("own"), budget=Claim(1.0, 1e9), has_app=False) as (manager, _):
        host = Host(manager, Script([pool_card("joined", "add", memory_mb=800.0, gpus=0.25)]))
        worker = host.join("10.0.0.5")
        wait_until(lambda: worker.state is WorkerState.READY)
        assert (manager.joined.claim, manager.held_memory) == (Claim(), 0)

        worker.crash()
        again = host.join()  # in the same place

        wait_until(lambda: again.state is WorkerState.READY)
        assert manager.joined.claim == Claim(0.25, 8e8)


def test_what_joined_workers_claim_is_not_given_to_the_pools():
    card = pool_card("default", memory_mb=300.0, gpus=0.5)
    with managed(card, budget=Claim(1.0, 1e9), has_app=True, script=Script([card], starts=False)) as (manager, script):
        other = pool_card("other", memory_mb=9e3)  # of the same application
        host = Host(manager, Script([pool_card("joined", "add", memory_mb=800.0, gpus=0.25), other]))
        worker = host.join()
        wait_until(lambda: worker.state is WorkerState.READY)
        assert (manager.joined.claim, manager.held_memory) == (Claim(0.25, 8e8), 800_000_000)
        script.starts = True
        wait_until(lambda: script.workers)
        script.workers[0].load()
        wait_until(lambda: manager.pools)
        wait_until(lambda: "200 MB are free" in manager.pool("default").reason)
        assert script.ids() == []

        worker.crash()

        wait_until(lambda: script.ids() == ["default/0"])
        assert (manager.joined.claim, manager.held_memory) == (Claim(), 300_000_000)
