"""Follows a call that this front accepted through the shared queue, to its one end.

Where several fronts may have run it, `ReplyOrder` decides which replies reach the client: no answer is put together of
two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import gevent

from corosrv.base.errors import (
    CallCancelled,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    IllegalTransition,
    NotHandedOver,
    QueueFull,
    RedisUnavailable,
    Unavailable,
    WorkerLost,
)
from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.call_codec import decode_end, decode_outputs
from corosrv.fleet.cluster.queue_names import QueueNames
from corosrv.fleet.cluster.script_runner import ScriptRunner
from corosrv.workers.dispatch.host import CallListener, RunningCall

log = logging.getLogger("corosrv.cluster")


class ReplyFate(Enum):
    """Lists what becomes of a reply."""

    TAKE = "take"  # it goes to the client
    DROP = "drop"  # another delivery has the client
    LOST = "lost"  # the delivery that has the client will send no more: the client gets an error


class ReplyOrder:
    """Follows the first delivery that sends something, so that no answer is put together of two."""

    def __init__(self) -> None:
        self._delivery: int | None = None

    @property
    def has_begun(self) -> bool:
        """Tells whether a piece of an answer went to the client."""
        return self._delivery is not None

    def chunk(self, delivery: int) -> ReplyFate:
        """Judges a piece of an answer."""
        if self._delivery is None:
            self._delivery = delivery
        return ReplyFate.TAKE if delivery == self._delivery else ReplyFate.DROP

    def end(self, delivery: int) -> ReplyFate:
        """Judges an end, after which the queue has the call no more: no delivery can end it another time."""
        return ReplyFate.TAKE if self._delivery in (None, delivery) else ReplyFate.LOST


ACK_BYTES = 256 << 10  # of a streamed answer, after which the front that sends it hears how much was read
RETRY_AFTER = 1  # seconds

Message = Mapping[bytes, bytes]


class SharedCallState(Enum):
    """Lists the states of a call in the shared queue, as the front sees it that accepted it."""

    SENDING = "sending"  # Redis has not answered yet
    QUEUED = "queued"  # its entry is there; some front may run it
    ENDED = "ended"


MOVES: dict[SharedCallState, frozenset[SharedCallState]] = {
    SharedCallState.SENDING: frozenset({SharedCallState.QUEUED, SharedCallState.ENDED}),
    SharedCallState.QUEUED: frozenset({SharedCallState.ENDED}),
    SharedCallState.ENDED: frozenset(),
}


class SharedCall(RunningCall):
    """A call in the shared queue. Its listener hears of its end once. Belongs to the hub's thread; nothing waits."""

    def __init__(
        self,
        id: str,
        stream: str,
        n_bytes: int,
        names: QueueNames,
        runner: ScriptRunner,
        listener: CallListener,
        on_end: Callable[[SharedCall], None],
        *,
        may_run_here: Callable[[], bool],
    ) -> None:
        """`may_run_here`: tells whether it could wait in this front instead."""
        self.id = id
        self.stream = stream
        self.n_bytes = n_bytes
        self.entry_id = ""
        self.state = SharedCallState.SENDING
        self._names = names
        self._runner = runner
        self._listener = listener
        self._on_end = on_end
        self._may_run_here = may_run_here
        self._order = ReplyOrder()
        self._n_pieces = 0
        self._n_received = 0  # bytes of them
        self._n_acknowledged = 0
        self._acknowledging: gevent.Greenlet | None = None

    def on_enqueued(self, reply: Any) -> None:
        """Takes Redis' answer to the enqueuing."""
        if isinstance(reply, CorosrvError):
            if self.state is SharedCallState.SENDING:
                self._fail_to_enqueue(reply)
            return
        if reply[0] == b"full":
            if self.state is SharedCallState.SENDING:
                error = QueueFull(
                    f"the call cannot be queued: {reply[1]} calls wait for it, which is the limit; try again"
                )
                error.retry_after = RETRY_AFTER
                self._end(error)
            return
        self.entry_id = reply[1].decode()
        if self.state is SharedCallState.ENDED:
            self._withdraw()  # it was cancelled meanwhile; or has ended, and this finds nothing
        else:
            self._enter(SharedCallState.QUEUED)

    def _fail_to_enqueue(self, error: CorosrvError) -> None:
        if isinstance(error, RedisUnavailable) and self._may_run_here():
            self._end(NotHandedOver(str(error)))
            return
        refusal = Unavailable("the queue that servers share cannot be reached now")
        refusal.retry_after = RETRY_AFTER
        self._end(refusal)

    # Replies.

    def on_message(self, kind: bytes, message: Message) -> None:
        """Takes a reply from the stream of this front."""
        if self.state is SharedCallState.ENDED:
            return
        try:
            if kind == b"chunk":
                self._on_chunk(int(message[b"n"]), message[b"f"].decode(), message[b"b"])
            elif kind == b"end":
                self._on_last(int(message[b"n"]), int(message[b"m"]), message[b"b"])
            elif kind == b"missing":
                self._on_missing()
        except (CorosrvError, KeyError, ValueError) as error:
            log.error("a reply to call %s cannot be read: %s", self.id, error)
            self._withdraw()
            self._end(HandlerFailed("the answer of another server cannot be read"))

    def _on_chunk(self, delivery: int, front: str, data: bytes) -> None:
        if self._order.chunk(delivery) is ReplyFate.TAKE:
            for outputs in decode_outputs(data):
                self._listener.on_outputs(0, outputs, len(data))
            self._n_pieces += 1
            self._n_received += len(data)
            if self._n_received - self._n_acknowledged >= ACK_BYTES and self._acknowledging is None:
                self._acknowledging = gevent.spawn(self._acknowledge, front)

    def _acknowledge(self, front: str) -> None:
        """Tells the front that sends how much was read, once the client has read most of it. Waits."""
        self._listener.wait_for_room()
        self._acknowledging = None
        if self.state is not SharedCallState.ENDED:
            self._n_acknowledged = self._n_received
            fields = ("c", self.id, "k", "ack", "n", self._n_acknowledged)
            self._runner.submit(queue_scripts.TELL, [self._names.front_stream(front)], fields)

    def _on_last(self, delivery: int, n_pieces: int, data: bytes) -> None:
        if self._order.end(delivery) is not ReplyFate.TAKE or n_pieces != self._n_pieces:
            self._end(WorkerLost("the server that answered was lost in the middle of its answer"))
            return
        end = decode_end(data)
        for outputs in end.outputs:
            self._listener.on_outputs(0, outputs, len(data))
        if self.state is not SharedCallState.ENDED:  # by what the listener made of the outputs
            self._end(end.error)

    def _on_missing(self) -> None:
        if self._order.has_begun:
            self._end(WorkerLost("the answer broke off: the queue that servers share has lost the call"))
            return
        error = Unavailable("the queue that servers share has lost the call; it may have run")
        error.retry_after = RETRY_AFTER
        self._end(error)

    # Its end for other reasons.

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        """Cancels the call: removes its entry from the queue, and tells a front that runs it."""
        if self.state is not SharedCallState.ENDED:
            self._withdraw()
            words = "the call's time was over" if is_deadline else "the call was cancelled"
            self._end(DeadlinePassed(words) if is_deadline else CallCancelled(words))

    def refuse(self, error: Unavailable) -> None:
        """Ends a call that no front serves any more; one that may have run, as lost."""

        def on_withdrawn(reply: Any) -> None:
            if self.state is not SharedCallState.ENDED:
                self._end(error if reply == 0 else WorkerLost("the server that ran the call was lost"))

        if self.state is SharedCallState.QUEUED:
            self._withdraw(on_withdrawn)

    def _withdraw(self, on_reply: Callable[[Any], object] = lambda reply: None) -> None:
        if self.entry_id:
            keys = (self.stream, self._names.mark(self.id), self._names.body(self.id))
            arguments = (self.entry_id, self.id, self._names.front_streams)
            self._runner.submit(queue_scripts.WITHDRAW, keys, arguments, on_reply)

    def _end(self, error: CorosrvError | None) -> None:
        self._enter(SharedCallState.ENDED)
        self._on_end(self)
        self._listener.on_end(0, error)

    def _enter(self, state: SharedCallState) -> None:
        if state not in MOVES[self.state]:
            raise IllegalTransition(f"call {self.id}", self.state, state)
        self.state = state
