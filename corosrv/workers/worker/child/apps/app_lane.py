"""Makes the child's end of a lane on which calls come."""

from __future__ import annotations

import msgspec.msgpack

from corosrv.workers.wire.calls import LaneFromAppWorker, LaneToAppWorker
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.worker.child.outbox import Drops, Ferry
from corosrv.workers.worker.child.slot_end import SlotEnd

AppLane = SlotEnd[LaneFromAppWorker, LaneToAppWorker]


def make_lane(number: int, fd: int, ferry: Ferry, drops: Drops) -> AppLane:
    """Makes a lane of a descriptor that came from the server; `number`: of its slot."""
    codec: StructCodec[LaneFromAppWorker, LaneToAppWorker] = StructCodec(LaneToAppWorker, msgspec.msgpack)
    return SlotEnd(number, fd, codec, ferry, drops, takes_fds=True)
