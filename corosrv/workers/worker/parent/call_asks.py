"""Answers what a running call asks of the server: calls of its own, and objects."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from corosrv.base.errors import ChannelClosed, NotOffered
from corosrv.contracts.jobs.infer import InferJob, InferReader
from corosrv.contracts.jobs.job import Terms
from corosrv.workers.objects.store import ObjectStore
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import (
    Ask,
    AskCancel,
    AskTaken,
    LaneFromAppWorker,
    LaneToAppWorker,
    ObjectAnswer,
    ObjectAsk,
)
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.worker.parent.asks import Asks, Submit
from corosrv.workers.worker.parent.object_asks import ObjectAsks

Lane = GeventChannel[LaneToAppWorker, LaneFromAppWorker]


def _refuse_job(job: InferJob) -> InferReader:
    raise NotOffered("this server runs no calls for handlers")


@dataclass(frozen=True)
class HandlerServices:
    """Holds the services that a server has for its handlers. `objects`: None if it has no store."""

    submit: Submit = _refuse_job
    objects: ObjectStore | None = None


class CallAsks:
    """Answers the asks of one call over its lane. Belongs to the hub's thread; nothing waits."""

    def __init__(self, services: HandlerServices, lane: Lane, terms: Terms) -> None:
        """`terms`: those of the call, which hold for what it asks."""
        self._calls = Asks(services.submit, lane.send, terms)
        self._objects = None if services.objects is None else ObjectAsks(services.objects, lane.send, terms.caller)
        self._lane = lane

    def on_message(self, message: Ask | AskCancel | AskTaken | ObjectAsk, fds: Sequence[int]) -> None:
        """Handles a message and closes its descriptors. Raises ProtocolError for an invalid one."""
        if isinstance(message, (Ask, AskCancel, AskTaken)):
            self._calls.on_message(message, fds)
        elif self._objects is not None:
            self._objects.on_message(message, fds)
        else:
            descriptors.close_all(fds)
            error = NotOffered("this server stores no objects")
            kind = error.kind.value
            with contextlib.suppress(ChannelClosed):
                self._lane.send(ObjectAnswer(message.number, status=error.status, error_kind=kind, message=str(error)))

    def close(self) -> None:
        """Cancels the calls that were asked for, and lets objects go; nothing is sent any more."""
        self._calls.close()
        if self._objects is not None:
            self._objects.close()
