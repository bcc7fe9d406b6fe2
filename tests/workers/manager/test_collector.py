"""The numbers of pools and workers for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from corosrv.serving.apps import ManagerCollector
from tests.support.waiting import wait_until
from tests.workers.manager.scripted import call, managed, pool_card


def lines(manager) -> set[str]:
    registry = CollectorRegistry()
    registry.register(ManagerCollector(manager))
    return set(generate_latest(registry).decode().splitlines())


def test_workers_and_pools_are_counted():
    with managed(pool_card("default", "add"), workers=2) as (manager, script):
        wait_until(lambda: len(script.ids()) == 2)
        call(manager, "add")
        script.worker("default/1").crash("no heartbeat came for 10 s")
        wait_until(lambda: len(script.ids()) == 2)

        assert lines(manager) >= {
            'corosrv_worker_state{pool="default",state="ready",worker="default/1"} 1.0',
            'corosrv_worker_in_flight{pool="default",worker="default/0"} 1.0',
            'corosrv_worker_in_flight{pool="default",worker="default/1"} 0.0',
            'corosrv_worker_restarts_total{pool="default",reason="lease_expired"} 1.0',
            'corosrv_lease_expired_total{pool="default"} 1.0',
            'corosrv_pool_target{pool="default"} 2.0',
            'corosrv_pool_crashlooping{pool="default"} 0.0',
        }


def test_no_process_id_is_a_label():
    with managed(pool_card()) as (manager, script):
        wait_until(lambda: script.ids())

        assert str(script.workers[0].pid) not in "".join(lines(manager))
