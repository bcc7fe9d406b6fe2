"""Answers what other processes ask of the server over their lanes: calls that go through the dispatcher, and objects.

Handlers ask (`CallAsks`), and the gRPC process, which asks for calls alone.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from corosrv.base.errors import ChannelClosed, CorosrvError, NotOffered, ProtocolError, QueueFull
from corosrv.contracts.jobs.infer import CapabilityTarget, InferJob, InferRequest, ModelTarget, Target
from corosrv.contracts.jobs.terms import Terms, TracePart
from corosrv.formats.tensors import Tensor
from corosrv.workers.objects import ObjectContent, ObjectStore, content_of
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import (
    Ask,
    AskCancel,
    AskEnd,
    AskTaken,
    LaneFromAppWorker,
    LaneToAppWorker,
    ObjectAnswer,
    ObjectAsk,
    ObjectCreate,
    ObjectDelete,
    ObjectInput,
    ObjectLookup,
)
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.wire.tensors import make_tensors, map_attached
from corosrv.workers.worker.parent.call_services import CallServices, FollowedAsk, SendAnswer, end_of

MAX_ASKS = 256  # that one call of a handler may have running at once


class Asks:
    """Runs the asks of one lane and sends their answers. Belongs to the thread of one hub.

    Each ask gets its outputs and then exactly one AskEnd, unless the lane is closed before.
    """

    def __init__(
        self,
        services: CallServices,
        send: SendAnswer,
        terms: Terms | None = None,
        *,
        limit: int = MAX_ASKS,
        is_trusted: bool = False,
    ) -> None:
        """Takes what the server does for the asks, and what sends a message over the lane.

        `terms`: those of the call that asks; its asks end at its deadline, belong to its caller, and are as urgent as
        it is unless they say otherwise. `limit`: how many asks may run at once. `is_trusted`: the asking side is ours:
        it has checked the tensors, and says who calls.
        """
        self._services = services
        self._send = send
        self._terms = terms or Terms()
        self._limit = limit
        self._is_trusted = is_trusted
        self._running: dict[int, FollowedAsk] = {}

    @property
    def n_running(self) -> int:
        return len(self._running)

    def on_message(self, message: Ask | AskCancel | AskTaken, fds: Sequence[int] = ()) -> None:
        """Handles a message of the asking side; closes the descriptors that came with it. Never waits.

        Raises ProtocolError for an ask whose number is in use, or whose attached tensors are not as announced.
        """
        if isinstance(message, Ask):
            self._begin(message, fds)
            return
        descriptors.close_all(fds)
        running = self._running.get(message.number)
        if running is None:
            return  # it has ended meanwhile
        if isinstance(message, AskCancel):
            running.cancel()
        else:
            running.take(message.count)

    def close(self) -> None:
        """Cancels all asks, as the lane or the asking call has ended. Nothing is sent any more. Never waits."""
        running, self._running = self._running, {}
        for ask in running.values():
            ask.kill()

    def _begin(self, ask: Ask, fds: Sequence[int]) -> None:
        if ask.number in self._running:
            descriptors.close_all(fds)
            raise ProtocolError(f"the ask {ask.number} is running already")
        content = map_attached([ask.request.inputs], fds)
        if len(self._running) >= self._limit:
            error = QueueFull(f"{self._limit} calls are made at once already; wait for some of them")
            self._tell(end_of(ask.number, None, error))
            return
        begin_call = self._services.begin_call
        trace = None if begin_call is None else begin_call(ask.headers, ask.stream)
        make_job = functools.partial(_job, ask, content, self._terms_of(ask, trace), self._is_trusted, self._services)
        running = self._running[ask.number] = FollowedAsk(
            ask.number, make_job, self._services, self._send, self._forget
        )
        running.trace = trace
        is_checked = self._is_trusted and self._services.accounts is None
        running.start(is_short=is_checked and not ask.object_inputs and not ask.stream)

    def _terms_of(self, ask: Ask, trace: TracePart | None) -> Terms:
        deadline = self._terms.deadline
        if ask.budget_us is not None:
            own_deadline = time.monotonic() + ask.budget_us / 1e6
            deadline = own_deadline if deadline is None else min(deadline, own_deadline)
        changes: dict[str, Any] = {
            "deadline": deadline,
            "priority": ask.priority or self._terms.priority,
            "request_id": ask.request_id or self._terms.request_id,
            "session": ask.session or self._terms.session,
            "trace": self._terms.trace if trace is None else trace,
        }
        if not self._is_trusted:
            return replace(self._terms, **changes)
        return replace(
            self._terms,
            caller=ask.caller,
            owner=ask.owner,
            tier=ask.tier or 0,
            idempotency_key=ask.idempotency_key,
            headers=tuple(ask.headers.items()),
            **changes,
        )

    def _forget(self, ask: FollowedAsk, end: AskEnd) -> None:
        if self._running.get(ask.number) is ask:
            del self._running[ask.number]
            if ask.trace is not None:
                ask.trace.end(error="" if end.fault is None else end.fault.kind)
            self._tell(end)

    def _tell(self, end: AskEnd) -> None:
        with contextlib.suppress(ChannelClosed):  # whoever owns the lane hears of it, and closes
            self._send(end, ())


def _job(ask: Ask, content: memoryview, terms: Terms, are_checked: bool, services: CallServices) -> InferJob:
    """Makes the job of an ask, in the greenlet that runs it. Raises InvalidTensor, what content_of raises, and
    Unauthorized for a caller who has just lost the key."""
    if services.accounts is not None and (account := services.accounts.enter(terms.caller)) is not None:
        terms = account.terms(terms)
        terms = terms if ask.tier is None else replace(terms, tier=ask.tier)
    (inputs,) = make_tensors([ask.request.inputs], content, are_checked=are_checked)
    if ask.object_inputs:
        inputs = _with_objects(
            inputs, ask.object_inputs, lambda object_id: content_of(services.objects, object_id, terms.caller)
        )
    outputs = None if ask.request.outputs is None else tuple(ask.request.outputs)
    request = InferRequest(inputs, ask.request.id, ask.request.parameters, outputs)
    return InferJob(_target_of(ask), request, ask.stream, terms)


def _with_objects(
    inputs: Sequence[Tensor], object_inputs: Sequence[ObjectInput], find: Callable[[str], memoryview]
) -> tuple[Tensor, ...]:
    """Returns all inputs in their order, with those that are objects at their places."""
    joined = list(inputs)
    for wire in sorted(object_inputs, key=lambda wire: wire.position):
        raw = find(wire.object_id)
        joined.insert(wire.position, Tensor(wire.name, wire.datatype, wire.shape, raw=raw, parameters=wire.parameters))
    return tuple(joined)


def _target_of(ask: Ask) -> Target:
    if ask.capability is not None:
        return CapabilityTarget(ask.capability, ask.prefer, ask.is_fuzzy)
    return ModelTarget(ask.model, ask.version)


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
