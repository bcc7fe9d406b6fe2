"""Runs the calls that this front took out of shared queues, and sends each answer to the front that accepted it."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from corosrv.base.errors import (
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    NotHandedOver,
    RedisUnavailable,
    ShuttingDown,
    Unavailable,
)
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferJob, InferOutputs, InferReader, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.accepted import queue_name
from corosrv.fleet.cluster.call_codec import SharedEnd, decode_call, encode_end, encode_outputs
from corosrv.fleet.cluster.queue_names import QueueNames
from corosrv.fleet.cluster.script_runner import ScriptRunner
from corosrv.fleet.cluster.shared_call import Message

log = logging.getLogger("corosrv.cluster")

WINDOW = 1 << 20  # bytes of a streamed answer that may be under way unread
LONGEST_STALL = 60.0  # seconds after which an answer is given up that nobody reads
LONGEST_ABSENCE = 600.0  # seconds of Redis' absence after which an end is no longer kept for it
RETRY_PAUSE = 0.2  # seconds

Submit = Callable[[InferJob], InferReader]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Is an entry of the queue that was delivered to this front. `remaining`: seconds to its deadline, or None."""

    domain: str
    key: str
    stream: str
    entry_id: str
    number: int  # of the delivery; 1 is the first
    call: str
    front: str  # that accepted it
    remaining: float | None
    body: bytes

    @property
    def is_claimed(self) -> bool:
        """Tells whether another front had it before."""
        return self.number > 1


class Delivery:
    """Runs one call. Its greenlet starts it, sends what it answers, and finishes the entry."""

    def __init__(
        self,
        entry: Delivered,
        card: HandlerCard,
        submit: Submit,
        names: QueueNames,
        runner: ScriptRunner,
        on_start: Callable[[], None],
        keep_end: Callable[[Sequence[str], Sequence[Any]], None],
        claim_ms: int,
    ) -> None:
        """`on_start`: called once, when the call waits or runs in this front, or does not."""
        self._claim_ms = claim_ms
        self.entry = entry
        self.has_started = False
        self._card = card
        self._submit = submit
        self._names = names
        self._runner = runner
        self._on_start: Callable[[], None] | None = on_start
        self._keep_end = keep_end
        self._reader: InferReader | None = None
        self._is_given_up = False
        self._n_pieces = 0
        self._n_sent = 0  # bytes of them
        self._n_read = 0
        self._has_room = Event()

    def run(self) -> None:
        """Runs the call to its end. Waits. Raises nothing but GreenletExit."""
        arrived = time.monotonic()
        try:
            if self._start():
                self.has_started = True
                self._call(arrived)
        except CorosrvError as error:
            log.warning("call %s of the shared queue was left: %s", self.entry.call, error)
        except Exception:
            log.exception("call %s of the shared queue failed by a bug", self.entry.call)
            self._finish(SharedEnd(error=HandlerFailed("the call could not be run")))
        finally:
            self.tell_started()

    def give_up(self) -> None:
        """Ends the call here: nobody wants its answer, or another front has it. Never waits. Twice is harmless."""
        self._is_given_up = True
        if self._reader is not None:
            self._reader.cancel()
        self._has_room.set()

    def acknowledge(self, n_read: int) -> None:
        """Learns how many bytes of the answer were read."""
        self._n_read = max(self._n_read, n_read)
        self._has_room.set()

    def tell_started(self) -> None:
        """Says that the call has its permit, or needs none. Later calls do nothing."""
        if self._on_start is not None:
            on_start, self._on_start = self._on_start, None
            on_start()

    def _start(self) -> bool:
        """Marks the call as started, after which it must not start elsewhere; returns whether it may run here."""
        entry = self.entry
        keys = (entry.stream, self._names.mark(entry.call))
        arguments = (entry.entry_id, self._names.front, entry.number, int(entry.is_claimed))
        fate = self._persist(queue_scripts.START, keys, arguments)
        if fate == b"overdue":
            self._finish(SharedEnd(error=DeadlinePassed("the call's time was over while it waited")))
        return bool(fate == b"run") and not self._is_given_up

    def _call(self, arrived: float) -> None:
        entry = self.entry
        try:
            shared = decode_call(entry.body)
            terms = Terms(
                caller=shared.caller,
                request_id=shared.request_id,
                priority=shared.priority,
                deadline=None if entry.remaining is None else arrived + entry.remaining,
                session=shared.session,
                waiting_keys=shared.waiting_keys,
            )
            target = ModelTarget(self._card.name, self._card.version)
            reader = self._submit(InferJob(target, shared.request, shared.stream, terms, self._card))
        except Unavailable as error:
            self._release(error)
            return
        except CorosrvError as error:
            self._finish(SharedEnd(error=error))
            return
        self._reader = reader
        self.tell_started()
        try:
            self._pass_on(reader, shared.stream and self._card.is_stream)
        finally:
            reader.close()

    def _pass_on(self, reader: InferReader, is_stream: bool) -> None:
        outputs: list[InferOutputs] = []
        while items := reader.take():
            for item in items:
                if isinstance(item, InferEnd):
                    self._end(tuple(outputs), item.error, has_sent=self._n_sent > 0)
                else:
                    outputs.append(item)
            if is_stream and outputs and not reader.is_finished:
                self._send(outputs)
                outputs = []

    def _send(self, outputs: Sequence[InferOutputs]) -> None:
        """Sends a piece of the answer; waits while too much is unread."""
        entry = self.entry
        data = encode_outputs(outputs)
        self._n_pieces += 1
        self._n_sent += len(data)
        keys = (self._names.mark(entry.call), self._names.front_stream(entry.front))
        self._runner.submit(
            queue_scripts.CHUNK, keys, (self._names.front, entry.number, entry.call, data), self._on_sent
        )
        while self._n_sent - self._n_read > WINDOW and not self._is_given_up:
            self._has_room.clear()
            if not self._has_room.wait(LONGEST_STALL):
                log.warning("call %s of the shared queue is given up: nobody reads its answer", entry.call)
                self._finish(SharedEnd(error=HandlerFailed("the answer was not read in time")))
                self.give_up()

    def _on_sent(self, reply: Any) -> None:
        if reply != 1:  # its client has left, another front has it, or a piece may be lost
            if isinstance(reply, CorosrvError):
                self._end_broken()
            self.give_up()

    def _end_broken(self) -> None:
        """Ends the answer of which a piece may be lost, in a greenlet of its own."""
        if not self._is_given_up:
            error = RedisUnavailable("the answer broke off: the queue that servers share was away")
            gevent.spawn(self._finish_if_possible, SharedEnd(error=error))

    def _finish_if_possible(self, end: SharedEnd) -> None:
        """Answers the call, unless Redis stays away for too long. Waits."""
        with contextlib.suppress(RedisUnavailable):
            self._finish(end)

    def _end(self, outputs: tuple[InferOutputs, ...], error: CorosrvError | None, has_sent: bool) -> None:
        if self._is_given_up:
            return
        if isinstance(error, (ShuttingDown, NotHandedOver)) and not has_sent:
            self._release(error)
        else:
            self._finish(SharedEnd(() if error else outputs, error))

    def _finish(self, end: SharedEnd) -> None:
        """Answers the call and removes its entry, as one step; waits for Redis if it is away."""
        entry = self.entry
        keys = (
            entry.stream,
            self._names.mark(entry.call),
            self._names.front_stream(entry.front),
            self._names.body(entry.call),
        )
        arguments = (entry.entry_id, self._names.front, entry.number, entry.call, self._n_pieces, encode_end(end))
        self._keep_end(keys, arguments)
        self._persist(queue_scripts.FINISH, keys, arguments)

    def _release(self, error: CorosrvError) -> None:
        """Returns the call to the queue, as nothing of it has run."""
        entry = self.entry
        log.info("call %s goes back to the shared queue: %s", entry.call, error)
        self._persist(queue_scripts.RELEASE, *release_words(self._names, entry, self._claim_ms))

    def _persist(self, text: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Runs a script that may run twice, until Redis has answered it. Waits. Raises what the last try raises."""
        ends_at = time.monotonic() + LONGEST_ABSENCE
        while True:
            try:
                return self._runner.run(text, keys, arguments)
            except RedisUnavailable:
                if self._runner.is_closed or time.monotonic() >= ends_at:
                    raise
            gevent.sleep(RETRY_PAUSE)


def release_words(names: QueueNames, entry: Delivered, claim_ms: int) -> tuple[Sequence[str], Sequence[Any]]:
    """Returns the keys and arguments by which an entry goes back to the queue."""
    keys = (entry.stream, names.mark(entry.call), names.bell)
    return keys, (entry.entry_id, names.front, claim_ms, queue_name(entry.domain, entry.key))


RECENT_S = 10.0  # seconds for which ends are kept, in case that Redis forgets the last ones
RECENT_ENDS = 4096
RECENT_BYTES = 16 << 20
RENEW_AT_ONCE = 100  # entries of one script


class DeliveredCalls:
    """Owns the calls that run here for other fronts, or for this one. Belongs to the hub's thread."""

    def __init__(self, names: QueueNames, runner: ScriptRunner, claim_ms: int) -> None:
        """`claim_ms`: of idleness, after which others take an entry."""
        self._names = names
        self._runner = runner
        self._claim_ms = claim_ms
        self._running: dict[str, Delivery] = {}  # by call
        self._ends: deque[tuple[float, Sequence[str], Sequence[Any]]] = deque()
        self._n_bytes = 0  # of those ends

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, entry: Delivered, card: HandlerCard, submit: Submit, on_start: Callable[[], None]) -> None:
        """Runs a call, in a greenlet of its own. Never waits."""
        if entry.call in self._running:  # this front was thought gone, and has claimed from itself
            on_start()
            return
        delivery = Delivery(entry, card, submit, self._names, self._runner, on_start, self._keep_end, self._claim_ms)
        self._running[entry.call] = delivery
        greenlet = gevent.spawn(delivery.run)
        greenlet.rawlink(lambda greenlet: self._forget(delivery))

    def return_entry(self, entry: Delivered) -> None:
        """Returns an entry to the queue that cannot run here. Never waits."""
        self._runner.submit(queue_scripts.RELEASE, *release_words(self._names, entry, self._claim_ms))

    def _forget(self, delivery: Delivery) -> None:
        delivery.tell_started()
        if self._running.get(delivery.entry.call) is delivery:
            del self._running[delivery.entry.call]

    def on_message(self, call: str, kind: bytes, message: Message) -> None:
        """Takes what the front that accepted a call wants of this one."""
        delivery = self._running.get(call)
        if delivery is None:
            return
        if kind == b"cancel":
            delivery.give_up()
        elif kind == b"ack":
            with suppress(KeyError, ValueError):  # of a message that no front has written
                delivery.acknowledge(int(message[b"n"]))

    def renew(self) -> None:
        """Says of all calls that they still run here, and gives up those that another front has taken. Never waits."""
        running = list(self._running.values())
        for start in range(0, len(running), RENEW_AT_ONCE):
            page = running[start : start + RENEW_AT_ONCE]
            keys = [delivery.entry.stream for delivery in page]
            arguments = [self._names.front, *(delivery.entry.entry_id for delivery in page)]
            self._runner.submit(queue_scripts.RENEW, keys, arguments, functools.partial(_give_up_lost, page))

    def reassert(self) -> None:
        """Tells Redis, which may have forgotten, which calls run here and which have just ended. Never waits."""
        for delivery in self._running.values():
            entry = delivery.entry
            if delivery.has_started:
                keys = (entry.stream, self._names.mark(entry.call))
                self._runner.submit(queue_scripts.REASSERT, keys, (entry.entry_id, self._names.front, entry.number))
        for _, end_keys, arguments in self._ends:
            self._runner.submit(queue_scripts.FINISH, end_keys, arguments)

    def _keep_end(self, keys: Sequence[str], arguments: Sequence[Any]) -> None:
        now = time.monotonic()
        self._ends.append((now, keys, arguments))
        self._n_bytes += len(arguments[-1])
        while (
            self._ends[0][0] < now - RECENT_S
            or len(self._ends) > RECENT_ENDS
            or (self._n_bytes > RECENT_BYTES and len(self._ends) > 1)
        ):
            self._n_bytes -= len(self._ends.popleft()[2][-1])


def _give_up_lost(page: Sequence[Delivery], reply: Any) -> None:
    if not isinstance(reply, CorosrvError):
        for place in reply:
            if page[place].has_started:
                page[place].give_up()
