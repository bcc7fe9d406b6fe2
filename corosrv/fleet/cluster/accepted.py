"""Keeps the calls that this front accepted and put into the shared queue, until each has ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.queue_names import QueueNames, band_of
from corosrv.fleet.cluster.script_runner import ScriptRunner
from corosrv.fleet.cluster.shared_call import Message, SharedCall, SharedCallState
from corosrv.workers.dispatch.host import CallListener

MAX_WITHIN = 64 << 10  # bytes of a body that is a field of its entry; a larger one has a key of its own
BODY_MS = 3600 * 1000  # for which such a key stays at most, if its call has no deadline
BODY_SLACK_MS = 60 * 1000  # for which it stays after the deadline
DELIVERIES = 3  # after which a call that nobody could run is put aside
CHECK_AT_ONCE = 100  # entries that one script looks for
OWNED_AT_ONCE = 200  # entries that one script looks at


@dataclass(frozen=True, slots=True)
class EntryTerms:
    """Says how an entry waits in the shared queue. `remaining`: seconds to its deadline, or None."""

    domain: str
    key: str
    priority: int
    max_queue: int
    remaining: float | None
    is_idempotent: bool
    idempotency_key: str


class AcceptedCalls:
    """Owns the calls that wait for replies. Belongs to the hub's thread."""

    def __init__(self, names: QueueNames, runner: ScriptRunner) -> None:
        self.n_bytes = 0  # of the bodies of all calls
        self._names = names
        self._runner = runner
        self._calls: dict[str, SharedCall] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def n_sending(self) -> int:
        """The number of calls that Redis has not confirmed yet."""
        return sum(call.state is SharedCallState.SENDING for call in self._calls.values())

    def enqueue(
        self, terms: EntryTerms, body: bytes, listener: CallListener, *, may_run_here: Callable[[], bool]
    ) -> SharedCall:
        """Puts a call into the queue. Never waits."""
        id = f"{self._names.front}.{next(self._numbers)}"
        streams = self._names.streams(terms.domain, terms.key)
        band = band_of(terms.priority)
        call = SharedCall(
            id, streams[band], len(body), self._names, self._runner, listener, self._forget, may_run_here=may_run_here
        )
        self._calls[id] = call
        self.n_bytes += call.n_bytes
        remaining_ms = 0 if terms.remaining is None else max(int(terms.remaining * 1000), 1)
        is_within = len(body) <= MAX_WITHIN
        arguments = (
            band + 1,
            terms.max_queue,
            remaining_ms,
            queue_name(terms.domain, terms.key),
            remaining_ms + BODY_SLACK_MS if remaining_ms else BODY_MS,
            b"" if is_within else body,
            *("c", id, "f", self._names.front, "i", int(terms.is_idempotent), "t", DELIVERIES),
            *("k", terms.idempotency_key, "b", body if is_within else b""),
        )
        keys = (*streams, self._names.bell, self._names.body(id))
        self._runner.submit(queue_scripts.ENQUEUE, keys, arguments, call.on_enqueued)
        return call

    def _forget(self, call: SharedCall) -> None:
        if self._calls.pop(call.id, None) is not None:
            self.n_bytes -= call.n_bytes

    def on_message(self, call_id: str, kind: bytes, message: Message) -> None:
        """Takes a reply. One to a call that has ended is dropped."""
        call = self._calls.get(call_id)
        if call is not None:
            call.on_message(kind, message)

    # Against losses.

    def check(self) -> None:
        """Asks Redis which accepted calls still have an entry; a lost one gets a `missing` reply."""
        for calls in _pages([call for call in self._calls.values() if call.state is SharedCallState.QUEUED]):
            keys = [self._names.own_stream, *(call.stream for call in calls)]
            arguments = [word for call in calls for word in (call.entry_id, call.id)]
            self._runner.submit(queue_scripts.CHECK, keys, arguments)

    def remove_orphans(self, streams: Sequence[str]) -> None:
        """Removes entries from the queue that this front accepted and knows no more: their clients have an answer.

        There may be some after Redis was away, or has forgotten that they were finished. Waits. Raises what
        ScriptRunner.run raises.
        """
        for stream in streams:
            after = "0-0"
            while after:
                arguments = (after, self._names.front, OWNED_AT_ONCE)
                last, owned = self._runner.run(queue_scripts.OWNED, [stream], arguments)
                for entry_id, call_id in owned:
                    self._remove_unless_known(stream, entry_id.decode(), call_id.decode())
                after = last.decode()

    def _remove_unless_known(self, stream: str, entry_id: str, call_id: str) -> None:
        if call_id not in self._calls:
            keys = (stream, self._names.mark(call_id), self._names.body(call_id))
            self._runner.submit(queue_scripts.WITHDRAW, keys, (entry_id, call_id, self._names.front_streams))


def queue_name(domain: str, key: str) -> str:
    """Returns the name of a queue as the bell tells it."""
    return f"{domain}|{key}"


def _pages(calls: list[SharedCall]) -> Iterator[list[SharedCall]]:
    for start in range(0, len(calls), CHECK_AT_ONCE):
        yield calls[start : start + CHECK_AT_ONCE]
