"""Follows a prediction on a slot of the worker: feeds its reader, and ends it once."""

from __future__ import annotations

import time

import gevent

from corosrv.base.errors import ProtocolError
from corosrv.contracts.jobs.answers import TERMINAL, Answer, Failed
from corosrv.workers.dispatch.permits import Permit
from corosrv.workers.worker.parent.predict_reader import PredictReader


class PredictCall:
    """Fulfils SlotCall for a prediction. Its terminal message is its last."""

    def __init__(self, id: str, permit: Permit, reader: PredictReader) -> None:
        self.id = id
        self.permit = permit
        self.reader = reader
        self.sending: gevent.Greenlet | None = None  # while its large input is written to a file
        self._began = time.monotonic()

    def is_last(self, message: Answer) -> bool:
        if not isinstance(message, TERMINAL):
            return False
        if message.id != self.id:
            raise ProtocolError(f"{type(message).__name__} came for another prediction than the one that runs")
        return True

    def add(self, message: Answer, n_bytes: int) -> None:
        self.reader.add(message, n_bytes)

    def wait_for_room(self) -> None:
        self.reader.wait_for_room()

    def fail(self, reason: str) -> None:
        failed = Failed(self.id, time.monotonic() - self._began, reason)
        if self.sending is None or self.sending.ready():
            self.reader.add(failed, 0)
        else:  # whoever reads it removes the directory, where a file is still written
            self.sending.rawlink(lambda _: self.reader.add(failed, 0))
