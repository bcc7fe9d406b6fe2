"""Numbers, metrics and log lines of calls."""

from __future__ import annotations

import json
import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from corosrv.base.errors import HandlerFailed, WorkerLost
from corosrv.workers.dispatch.estimates import Distribution, EventRate, RunningMean
from corosrv.workers.dispatch.stats import DispatchCollector
from tests.workers.dispatch.hosts import Front, capability_card, card


@pytest.fixture
def front() -> Front:
    return Front.make()


def test_a_key_tells_what_waits_and_runs_and_how_long_it_takes(front: Front):
    host = front.add("p/0", card(max_queue=7), n_slots=2)
    for _ in range(4):
        front.call()
    front.clock.pass_time(3)

    key = front.key()

    assert (key.state, key.pools, key.depth, key.max_depth, key.oldest) == ("READY", ("p",), 2, 7, 3)
    assert (key.in_flight, key.permits) == (2, 2)
    assert (key.wait_mean, key.service_mean) == (0, None)
    host.calls[0].finish()
    assert front.key().service_mean == 3
    assert front.key().wait_mean == pytest.approx(0.6)
    assert front.key().outcomes == {"ok": 1}
    assert front.dispatcher.stats().n_calls == 3


def test_calls_of_local_queues_are_counted_with_their_key(front: Front):
    front.add("p/0")
    front.call(session="s")
    front.add("p/1")
    front.clock.pass_time(1)
    front.call(session="s")
    front.clock.pass_time(0.1)

    assert front.key().depth == 1
    assert front.key().oldest == pytest.approx(0.1)


def test_keys_that_nobody_has_called_are_told_of(front: Front):
    front.dispatcher.expect("q", [card("sub")])

    assert front.key("model:sub:").pools == ("q",)


def test_the_rate_of_arrivals_follows_the_last_ten_seconds():
    rate = EventRate()
    for number in range(1000):
        rate.add(number / 10)

    assert rate.value(100) == pytest.approx(10, rel=0.1)
    assert rate.value(110) == pytest.approx(10 / 2.718, rel=0.1)
    assert EventRate().value(5) == 0


def test_a_running_mean_begins_with_its_first_value_and_follows():
    mean = RunningMean()
    mean.add(10)
    assert mean.value == 10
    for _ in range(50):
        mean.add(1)
    assert mean.value == pytest.approx(1, rel=0.01)


def test_a_distribution_counts_what_does_not_exceed_each_bound():
    distribution = Distribution((1, 2))
    for value in (0.5, 1, 1.5, 3):
        distribution.add(value)

    assert distribution.cumulative() == [("1", 2), ("2", 3), ("+Inf", 4)]
    assert distribution.sum == 6


def test_the_metrics_name_keys_and_outcomes(front: Front):
    host = front.add("p/0", card(), capability_card("embed", type="e"))
    front.call()
    front.call()
    host.calls[0].fail(HandlerFailed("no"))
    registry = CollectorRegistry()
    registry.register(DispatchCollector(front.dispatcher.stats))

    exposition = generate_latest(registry).decode()

    for line in (
        'corosrv_queue_depth{key="model:add:"} 0.0',
        'corosrv_calls_in_flight{key="model:add:"} 1.0',
        'corosrv_requests_total{code="handler_failed",key="model:add:"} 1.0',
        'corosrv_queue_oldest_seconds{key="model:add:"} 0.0',
        'corosrv_permits{key="model:add:"} 1.0',
        'corosrv_call_wait_seconds_bucket{key="model:add:",le="+Inf"} 2.0',
        'corosrv_service_seconds_bucket{key="model:add:",le="+Inf"} 1.0',
        'corosrv_batch_size_bucket{key="model:add:",le="1"} 2.0',
        'corosrv_queue_depth{key="cap:{\\"type\\":\\"e\\"}"} 0.0',
        "corosrv_retry_budget 30.2",
    ):
        assert line in exposition


def test_further_attempts_are_counted_by_their_reason(front: Front):
    host = front.add("p/0", card(is_idempotent=True))
    front.call()
    host.calls[0].fail(WorkerLost("it is gone"))
    registry = CollectorRegistry()
    registry.register(DispatchCollector(front.dispatcher.stats))

    exposition = generate_latest(registry).decode()

    assert 'corosrv_retries_total{key="model:add:",reason="worker_lost"} 1.0' in exposition


@pytest.mark.parametrize("logs_json", [True, False])
def test_each_ended_call_has_one_line_of_log(caplog: pytest.LogCaptureFixture, logs_json: bool):
    front = Front.make(logs_json=logs_json)
    host = front.add("p/0", incarnation=3)
    front.call()
    front.call(request_id="r2")
    front.clock.pass_time(1)
    host.calls[0].finish()
    front.clock.pass_time(0.5)
    caplog.set_level(logging.INFO, "corosrv.calls")

    host.calls[0].fail(HandlerFailed("its own words"))

    line = caplog.messages[0]
    assert len(caplog.messages) == 1
    assert "its own words" not in line
    if logs_json:
        assert json.loads(line) == {
            "event": "call_ended", "id": "r2", "key": "model:add:", "outcome": "handler_failed", "worker": "p/0",
            "incarnation": 3, "attempts": 1, "queue_ms": 1000.0, "service_ms": 500.0, "total_ms": 1500.0,
        }  # fmt: skip
    else:
        assert "call r2 of model:add: ended: handler_failed, worker p/0 (3), 1 attempts, 1000.0 ms queued" in line


def test_calls_that_went_well_are_logged_for_debugging(front: Front, caplog: pytest.LogCaptureFixture):
    host = front.add("p/0")
    caplog.set_level(logging.DEBUG, "corosrv.calls")
    front.call()

    host.calls[0].finish()

    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
