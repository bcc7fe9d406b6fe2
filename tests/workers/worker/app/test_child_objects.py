"""Objects that handlers store and read: the real child, and a real store at the other end of its lane."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from corosrv.workers.objects import ObjectStore
from corosrv.workers.wire.calls import (
    Ask,
    AskEnd,
    AskOutputs,
    CallOutputs,
    ObjectCreate,
    ObjectDelete,
    ObjectGet,
    ObjectLookup,
)
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.worker.parent.asks import ObjectAsks
from tests.support.app_child import AppChildProcess, number
from tests.support.waiting import eventually

BOTH = ["objects", "objects_async"]
OBJECT_ASKS = (ObjectCreate, ObjectLookup, ObjectGet, ObjectDelete)


def serve(child: AppChildProcess, slot: int, store: ObjectStore) -> Any:
    """Answers what the handler asks of the store, up to another message, which it returns."""
    lane = child.lanes[slot]
    asks = ObjectAsks(store, lambda message, fds: lane.send(message, fds))
    while isinstance(message := child.hear_message(slot), OBJECT_ASKS):
        asks.on_message(message, lane.take_fds())
    return message


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("n", "content_type", "size"),
    [
        (1, "application/octet-stream", 5),
        (2, "application/json", 25),
        (3, "application/json", 6),
        (4, "application/x-corosrv-tensor; datatype=INT32; shape=2x1", 8),
        (5, "application/x-corosrv-tensor; datatype=FP32; shape=", 4),
        (6, "application/x-corosrv-tensor; datatype=UINT8; shape=2097152", 2 << 20),
        (7, "application/octet-stream", 2 << 20),
        (8, "application/json", 2),
        (9, "application/x-corosrv-tensor; datatype=BYTES; shape=2", 10),
    ],
)
def test_a_value_is_read_as_it_was_stored(
    child: AppChildProcess, name: str, n: int, content_type: str, size: int
) -> None:
    slot = child.slot(name)
    child.send(name, [number("n", n)])

    message = serve(child, slot, ObjectStore())
    child.hear(slot)

    assert isinstance(message, CallOutputs), message
    assert message.parameters.pop("gone").startswith("NotFound: ")  # type: ignore[union-attr]
    assert message.parameters == {
        "is_same": True,
        "type": content_type,
        "size": size,
        "is_found": True,
        "is_nobody": True,
    }


@pytest.mark.parametrize("name", BOTH)
def test_large_objects_leave_no_descriptor_in_the_worker(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)

    def run() -> None:
        child.send(name, [number("n", 6)])
        serve(child, slot, ObjectStore())
        child.hear(slot)
        gc.collect()

    def n_fds() -> int:
        return len(os.listdir(f"/proc/{child.process.pid}/fd"))

    run()
    before = n_fds()
    run()

    eventually(lambda: n_fds() <= before)  # some may be closed behind the end


@pytest.mark.parametrize("name", ["objects_as_inputs", "objects_as_inputs_async"])
def test_a_reference_may_be_an_input_of_a_call(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.send(name, [])

    ask = serve(child, slot, ObjectStore())

    assert isinstance(ask, Ask)
    ((*tensors,),) = unpack([ask.request.inputs], ())
    assert [(tensor.name, tensor.datatype, tensor.shape, tensor.data) for tensor in tensors] == [
        ("b", "BYTES", (1,), [b"bytes"]),
        ("t", "INT32", (2, 1), [1, 2]),
    ]
    with TensorPacking() as packing:
        child.lanes[slot].send(AskOutputs(ask.number, packing.pack([number("n", 1)])))
    child.lanes[slot].send(AskEnd(ask.number))
    assert child.hear(slot)[0].only == {"n": [1]}


@pytest.mark.parametrize(
    ("n", "error"),
    [
        (1, "OutputFailed: no object can hold this set"),
        (2, "OutputFailed: an object of the type 'a' needs bytes, and no str"),
    ],
)
def test_what_no_object_can_hold_is_refused(child: AppChildProcess, n: int, error: str) -> None:
    assert child.call("objects_refused", number("n", n)).parameters[0]["error"].startswith(error)
