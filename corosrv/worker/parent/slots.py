"""The slots of a worker that is set up: predictions run on them, until the slots or the worker end."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import gevent

from corosrv.dispatch.permits import PermitPool
from corosrv.errors import NoCapacity
from corosrv.jobs import PredictJob
from corosrv.wire.gevent_channel import GeventChannel
from corosrv.wire.messages import Predict, SlotToServer
from corosrv.worker.parent.input_file import large_message, small_message
from corosrv.worker.parent.predict_reader import PredictReader
from corosrv.worker.parent.slot import Running, Slot

log = logging.getLogger("corosrv.worker")


class Slots:
    """Owns the permits. `cancel` sends a cancel for the prediction of an id on a slot."""

    def __init__(
        self,
        ids: Sequence[int],
        channels: Sequence[GeventChannel[Predict, SlotToServer]],
        cancel: Callable[[int, str], None],
    ) -> None:
        self.permits = PermitPool(ids)
        self._slots = [Slot(slot_id, channel) for slot_id, channel in zip(ids, channels, strict=True)]
        self._by_id = {slot.id: slot for slot in self._slots}
        self._cancel = cancel

    def __contains__(self, slot_id: int) -> bool:
        return slot_id in self._by_id

    def id_of(self, lane: int) -> int:
        """Returns the slot whose channel has this number."""
        return self._slots[lane].id

    def submit(self, job: PredictJob) -> PredictReader:
        """Runs a job on an idle slot, or raises NoCapacity. Never waits; a large input is sent when it is written."""
        permit = self.permits.try_acquire()
        if permit is None:
            raise NoCapacity
        reader = PredictReader(functools.partial(self._cancel, permit.slot, job.id))
        running = Running(job.id, permit, reader)
        slot = self._by_id[permit.slot]
        slot.begin(running)
        try:
            message = small_message(job)
            if message is not None:
                slot.send(message)
            else:
                running.sending = gevent.spawn(self._send_large, slot, running, job)
        except Exception as error:  # whatever keeps the job from its slot is the job's own failure
            slot.fail(f"{type(error).__name__}: {error}")
        return reader

    def _send_large(self, slot: Slot, running: Running, job: PredictJob) -> None:
        try:
            message = large_message(job)
            if slot.running is running:
                slot.send(message)
        except Exception as error:  # as in submit
            if slot.running is running:
                running.sending = None
                slot.fail(f"{type(error).__name__}: {error}")

    def on_message(self, lane: int, message: SlotToServer, n_bytes: int) -> None:
        """Handles a message. Raises ProtocolError for one that no prediction can have sent."""
        self._slots[lane].on_message(message, n_bytes)

    def wait_for_room(self, lane: int) -> None:
        """Waits until the reader of this lane's prediction has room for messages."""
        self._slots[lane].wait_for_room()

    def poison(self, slot_id: int, reason: str) -> None:
        """Takes a slot out of use for ever; a prediction that runs there fails with the reason."""
        log.error("slot %d is poisoned: %s", slot_id, reason)
        slot = self._by_id[slot_id]
        if slot.running is not None:
            self._cancel(slot_id, slot.running.id)
        slot.fail(reason, poison=reason)
        self.permits.poison(slot_id, reason)
        slot.channel.close()

    def poison_all(self, reason: str) -> None:
        """Fails all running predictions: the worker has ended."""
        for slot in self._slots:
            slot.fail(reason, poison=reason)
            self.permits.poison(slot.id, reason)
