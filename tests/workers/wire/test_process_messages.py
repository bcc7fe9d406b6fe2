"""The messages that all worker processes share: each kind of worker's codec knows them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from corosrv.workers.wire import calls, messages
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import DroppedLogs, Fatal, Lanes, Log, ProcessMessage, SlotFailed

FROM_WORKER = [Log("stderr", "hello\n"), DroppedLogs(3, 200), Fatal("out of cheese"), SlotFailed(1, "torn")]


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize(
    ("incoming", "format"),
    [(messages.ControlToServer, msgspec.json), (calls.ControlFromAppWorker, msgspec.msgpack)],
    ids=["predictor", "app"],
)
def test_the_server_reads_it_from_each_kind_of_worker(incoming: Any, format: Any, message: ProcessMessage) -> None:
    codec: StructCodec[Any, Any] = StructCodec(incoming, format)

    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize(
    ("incoming", "format"),
    [(messages.ControlToWorker, msgspec.json), (calls.ControlToAppWorker, msgspec.msgpack)],
    ids=["predictor", "app"],
)
def test_each_kind_of_worker_gets_its_lanes_with_it(incoming: Any, format: Any) -> None:
    codec: StructCodec[Any, Any] = StructCodec(incoming, format)

    assert codec.decode(codec.encode(Lanes())) == Lanes()
