from __future__ import annotations

from typing import Any

import msgspec
import pytest

from corosrv.contracts.jobs.infer import BatchLimits, HandlerCard
from corosrv.workers.wire.calls import PROTOCOL, Loaded, PoolCard
from corosrv.workers.worker.parent.app_worker import MAX_SLOTS, fault_of_load, fault_of_registration, lane_groups


def pool(*handlers: HandlerCard, name: str = "default", **details: Any) -> PoolCard:
    return PoolCard(name, list(handlers), **details)


def model(name: str = "a", **details: Any) -> HandlerCard:
    return HandlerCard(name, **details)


def test_well_described_pools_have_no_fault() -> None:
    default = pool(
        model("a", group=0, concurrency=3),
        model("a", version="2", group=0, concurrency=3),
        model("embed", capability={"type": "embed"}, group=1, batch=BatchLimits(8, 5.0)),
        min_workers=0,
        max_workers=4,
    )

    assert fault_of_load(Loaded([default, pool(model("b"), name="B", gpus=0.5, memory_mb=100.0)])) == ""


def test_pools_that_are_just_within_their_limits_have_no_fault() -> None:
    first = pool(model("a", priority=1, max_queue=0, batch=BatchLimits(1, 0.0)), min_workers=1, max_workers=1)
    widest = pool(model("b", priority=9, concurrency=MAX_SLOTS), name="B", min_workers=2, max_workers=2)

    assert fault_of_load(Loaded([first, widest])) == ""


@pytest.mark.parametrize(
    ("pools", "fault"),
    [
        ([], "no handlers"),
        ([pool()], "pool 'default' has no handlers"),
        ([pool(model("a")), pool(model("b"))], "the names"),
        ([pool(model("a"), name="")], "the names"),
        ([pool(model("a"), name="joined")], "a pool cannot have the name 'joined'"),
        ([pool(model("a"), model("a"))], "model:a: is offered twice"),
        ([pool(model("a")), pool(model("a"), name="b")], "model:a: is offered twice"),
        ([pool(model("x"), model("a"), model("a"))], "model:a: is offered twice"),
        ([pool(model("a", capability={"x": 1}), model("b", capability={"x": 1}))], 'cap:{"x":1} is offered twice'),
        ([pool(model("", version="1"))], "model::1 has"),
        ([pool(model(concurrency=0))], "concurrency 0"),
        ([pool(model(concurrency=-3))], "concurrency -3"),
        ([pool(model(max_queue=-1))], "a queue of -1"),
        ([pool(model(group=-1))], "group -1"),
        ([pool(model(priority=0))], "priority 0"),
        ([pool(model(priority=10))], "priority 10"),
        ([pool(model(batch=BatchLimits(0)))], "batches of 0"),
        ([pool(model(batch=BatchLimits(2, -1.0)))], "for -1.0 ms"),
        ([pool(model(batch=BatchLimits(2, float("nan"))))], "for nan ms"),
        ([pool(model("a", concurrency=1), model("b", concurrency=2))], "different concurrencies"),
        ([pool(model(concurrency=MAX_SLOTS + 1))], f"may have {MAX_SLOTS}"),
        ([pool(model("a", concurrency=MAX_SLOTS), model("b", group=1))], f"wants {MAX_SLOTS + 1} slots"),
        ([pool(model(), min_workers=-1)], "wants -1 to None workers"),
        ([pool(model(), max_workers=0)], "wants None to 0 workers"),
        ([pool(model(), min_workers=3, max_workers=2)], "wants 3 to 2 workers"),
        ([pool(model(), gpus=-1.0)], "claims -1.0 GPUs"),
        ([pool(model(), memory_mb=float("nan"))], "nan MB"),
    ],
)
def test_an_application_that_cannot_be_served_is_refused_with_the_reason(pools: list[PoolCard], fault: str) -> None:
    assert fault in fault_of_load(Loaded(pools))


def test_another_protocol_is_refused() -> None:
    assert "speaks protocol" in fault_of_load(Loaded([pool(model())], PROTOCOL + 1))


def test_handlers_must_be_those_that_were_announced() -> None:
    announced = pool(model("a"), model("b", group=1))
    same = msgspec.msgpack.decode(msgspec.msgpack.encode(announced), type=PoolCard).handlers

    assert fault_of_registration(same, announced) == ""
    assert "registers ['model:a:']" in fault_of_registration([model("a")], announced)
    assert "describes them otherwise" in fault_of_registration([model("a", concurrency=2), same[1]], announced)
    assert fault_of_registration(same[::-1], announced)  # their positions name them


def test_slots_are_numbered_through_the_groups_in_their_order() -> None:
    handlers = [
        model("a", group=7, concurrency=2),
        model("b", group=3, concurrency=3),
        model("c", group=7, concurrency=2),
    ]

    low, high = lane_groups(handlers)

    assert (low.handlers, high.handlers) == ((1,), (0, 2))
    assert [slot in low.permits for slot in range(5)] == [True, True, True, False, False]
    assert [slot in high.permits for slot in range(5)] == [False, False, False, True, True]
