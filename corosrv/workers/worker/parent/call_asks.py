"""Answers what a running call asks of the server over its lane: calls of its own, and objects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from corosrv.base.errors import ChannelClosed, CorosrvError, NotOffered, ProtocolError
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.objects import ObjectContent, ObjectStore
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import (
    Ask,
    AskCancel,
    AskTaken,
    LaneFromAppWorker,
    LaneToAppWorker,
    ObjectAnswer,
    ObjectAsk,
    ObjectCreate,
    ObjectDelete,
    ObjectLookup,
)
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.worker.parent.asks import Asks, CallServices

SendObjects = Callable[[ObjectAnswer, Sequence[int]], None]  # raises what GeventChannel.send raises


class ObjectAsks:
    """Answers the messages about objects of one lane. `caller`: whose objects its call may see. Nothing waits.

    A large content is not copied: the memory file that the handler made is the one that others get. What a call has
    read stays in the store until close(), as its worker keeps it mapped: evicting it would make no room.
    """

    def __init__(self, store: ObjectStore, send: SendObjects, caller: str = "") -> None:
        self._store = store
        self._send = send
        self._caller = caller
        self._pins = contextlib.ExitStack()
        self._pinned_ids: set[str] = set()

    def on_message(self, message: ObjectAsk, fds: Sequence[int] = ()) -> None:
        """Handles a message and sends its answer; owns the descriptors that came with it.

        Raises ProtocolError for a content that is not as announced.
        """
        content = _content(message, fds)
        answer_fds: tuple[int, ...] = ()
        try:
            answer, answer_fds = self._answer(message, content)
        except CorosrvError as error:
            answer = ObjectAnswer(message.number, fault=Fault.from_error(error))
        with contextlib.suppress(ChannelClosed):  # whoever owns the lane hears of it
            self._send(answer, answer_fds)

    def _answer(self, message: ObjectAsk, content: ObjectContent) -> tuple[ObjectAnswer, tuple[int, ...]]:
        now = time.monotonic()
        match message:
            case ObjectCreate():
                ref = self._store.create(
                    content,
                    message.sha256,
                    now,
                    caller=self._caller,
                    key=message.key,
                    ttl_s=message.ttl_s,
                    content_type=message.content_type,
                )
                return ObjectAnswer(message.number, ref), ()
            case ObjectLookup():
                return ObjectAnswer(message.number, self._store.lookup(message.key, now, self._caller)), ()
            case ObjectDelete():
                self._store.delete(message.id, now, self._caller)
                return ObjectAnswer(message.number), ()
            case _:
                stored = self._store.get(message.id, now, self._caller)
                if message.id not in self._pinned_ids:
                    self._pinned_ids.add(message.id)
                    self._pins.enter_context(self._store.pinned(message.id, now, self._caller))
                fd = stored.content.fd
                if fd is None:
                    return ObjectAnswer(message.number, stored.ref, bytes(stored.content.view())), ()
                return ObjectAnswer(message.number, stored.ref, n_attached=stored.ref.size), (fd,)

    def close(self) -> None:
        """Releases the objects that the call has read. Twice is harmless."""
        self._pins.close()


def _content(message: ObjectAsk, fds: Sequence[int]) -> ObjectContent:
    """Takes the content that came with a message; closes descriptors that it must not have."""
    n_expected = 1 if isinstance(message, ObjectCreate) and message.n_attached >= 0 else 0
    if len(fds) != n_expected:
        descriptors.close_all(fds)
        raise ProtocolError(f"{len(fds)} descriptors came with a message about objects, where {n_expected} belong")
    if not isinstance(message, ObjectCreate):
        return ObjectContent()
    if message.n_attached < 0:
        return ObjectContent.copy([message.data])
    try:
        descriptors.check(fds[0], message.n_attached)
    except ProtocolError:
        descriptors.close_all(fds)
        raise
    return ObjectContent(fd=fds[0], size=message.n_attached)


Lane = GeventChannel[LaneToAppWorker, LaneFromAppWorker]


class CallAsks:
    """Answers the asks of one call over its lane. Belongs to the hub's thread; nothing waits."""

    def __init__(self, services: CallServices, lane: Lane, terms: Terms) -> None:
        """`terms`: those of the call, which hold for what it asks."""
        self._calls = Asks(services, lane.send, terms)
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
            fault = Fault.from_error(NotOffered("this server stores no objects"))
            with contextlib.suppress(ChannelClosed):
                self._lane.send(ObjectAnswer(message.number, fault=fault))

    def close(self) -> None:
        """Cancels the calls that were asked for, and lets objects go; nothing is sent any more."""
        self._calls.close()
        if self._objects is not None:
            self._objects.close()
