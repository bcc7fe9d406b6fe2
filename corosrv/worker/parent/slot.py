"""One slot of the worker, on the server's side: the running prediction, and its end."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

import gevent

from corosrv.dispatch.permits import Permit
from corosrv.errors import ChannelClosed, ProtocolError
from corosrv.jobs.answers import TERMINAL, Failed
from corosrv.wire.gevent_channel import GeventChannel
from corosrv.wire.messages import Predict, SlotToServer
from corosrv.worker.parent.predict_reader import PredictReader


@dataclass(slots=True)
class Running:
    """A prediction that has a slot; its permit and its reader."""

    id: str
    permit: Permit
    reader: PredictReader
    sending: gevent.Greenlet | None = None  # while its large input is written to a file
    began: float = field(default_factory=time.monotonic)


class Slot:
    """Runs one prediction after the other. Each gets one terminal message, after its permit has ended."""

    def __init__(self, slot_id: int, channel: GeventChannel[Predict, SlotToServer]) -> None:
        self.id = slot_id
        self.channel = channel
        self.running: Running | None = None

    def begin(self, prediction: Running) -> None:
        assert self.running is None, f"slot {self.id} runs {self.running}"
        self.running = prediction

    def send(self, message: Predict) -> None:
        """Sends the prediction that has begun. Raises FrameTooLarge, and what JSON cannot hold."""
        with contextlib.suppress(ChannelClosed):  # whoever reads the channel hears of it, and ends what runs
            self.channel.send(message)

    def on_message(self, message: SlotToServer, n_bytes: int) -> None:
        """Handles a message. Raises ProtocolError for one that no prediction of this slot can have sent."""
        running = self.running
        if running is None:
            raise ProtocolError(f"{type(message).__name__} came while no prediction ran")
        if isinstance(message, TERMINAL):
            if message.id != running.id:
                raise ProtocolError(f"{type(message).__name__} came for another prediction than the one that runs")
            self.running = None
            running.permit.release()
        running.reader.add(message, n_bytes)

    def wait_for_room(self) -> None:
        """Waits until the running prediction's reader has room for messages."""
        if self.running is not None:
            self.running.reader.wait_for_room()

    def fail(self, error: str, poison: str | None = None) -> None:
        """Ends the running prediction, if any; poisons the slot if `poison` has a reason."""
        running, self.running = self.running, None
        if running is None:
            return
        if poison is None:
            running.permit.release()
        else:
            running.permit.poison(poison)
        failed = Failed(running.id, time.monotonic() - running.began, error)
        if running.sending is None or running.sending.ready():
            running.reader.add(failed, 0)
        else:  # whoever reads it removes the directory, where a file is still written
            running.sending.rawlink(lambda _: running.reader.add(failed, 0))
