"""Links this front to the queues that it shares with others: the calls that it accepted and those that it runs.

One connection reads what other fronts send to this one, and the bell that rings when a queue has a new entry.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent
from gevent.event import Event

from corosrv.base.errors import CorosrvError
from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.accepted import AcceptedCalls
from corosrv.fleet.cluster.connection import BlockingConnection, RedisClient
from corosrv.fleet.cluster.delivery import DeliveredCalls
from corosrv.fleet.cluster.queue_consumer import QueueConsumer, SharedDispatcher
from corosrv.fleet.cluster.queue_names import QueueNames, QueueTiming
from corosrv.fleet.cluster.script_runner import ScriptRunner
from corosrv.fleet.cluster.shared_queue import SharedQueue

log = logging.getLogger("corosrv.cluster")

LONGEST_READ = 1.0  # seconds that a read waits in Redis
AT_ONCE = 128  # messages of one read
LONGEST_PAUSE = 0.4  # seconds between two tries to connect

OnMessage = Callable[[Mapping[bytes, bytes]], object]
OnBell = Callable[[str, bool], object]  # of the name of a queue, and whether one of its entries may be claimed


class FrontReader:
    """Hands over each message of this front's stream, in their order, and each stroke of the bell."""

    def __init__(
        self, client: RedisClient, names: QueueNames, runner: ScriptRunner, on_message: OnMessage, on_bell: OnBell
    ) -> None:
        """Calls `on_message` and `on_bell`, which must not wait."""
        self._client = client
        self._names = names
        self._runner = runner
        self._on_message = on_message
        self._on_bell = on_bell
        self._last = {names.own_stream.encode(): b"0-0", names.bell.encode(): b"0-0"}
        self._connection: BlockingConnection | None = None
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        self._connection = self._client.open_blocking(LONGEST_READ)
        self._greenlet = gevent.spawn(self._run, self._connection)

    def close(self) -> None:
        """Reads no more. Twice is harmless."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None
        if self._connection is not None:
            self._connection.close()

    def _run(self, connection: BlockingConnection) -> None:
        block = int(LONGEST_READ * 1000)
        while True:
            try:
                read = ("XREAD", "COUNT", AT_ONCE, "BLOCK", block, "STREAMS")
                self._hand_over(connection.execute(*read, *self._last, *self._last.values()) or ())
            except CorosrvError:
                connection.close()
                gevent.sleep(random.uniform(0, LONGEST_PAUSE))
            except Exception:
                log.exception("messages of other servers could not be read, by a bug")
                gevent.sleep(LONGEST_PAUSE)

    def _hand_over(self, streams: Sequence[Any]) -> None:
        bell = self._names.bell.encode()
        for name, messages in streams:
            for id, flat in messages:
                self._last[name] = id
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                # Whoever can write to Redis may add what is no message: it is for nobody.
                if name != bell and b"c" in fields and b"k" in fields:
                    self._on_message(fields)
                elif name == bell and b"q" in fields:
                    self._on_bell(fields[b"q"].decode("utf-8", "replace"), fields.get(b"k") == b"idle")
            if name != bell:
                self._runner.submit(queue_scripts.TRIM, [self._names.own_stream], [self._last[name]])


CLAIM_ROUNDS = 2  # renewals after which entries of lost fronts are looked for
LAST_WORDS = 1.0  # seconds in which Redis hears how calls have ended
CHECK_ROUNDS = 4  # renewals after which it is asked whether the calls that wait are still there


class QueueLink:
    """Owns the calls of this front in shared queues, those that it accepted and those that it runs.

    Belongs to the hub's thread; nothing waits but its greenlets.
    """

    def __init__(self, client: RedisClient, names: QueueNames, timing: QueueTiming | None = None) -> None:
        self._client = client
        self._timing = timing or QueueTiming()
        self._names = names
        self._runner = ScriptRunner(client)
        self.accepted = AcceptedCalls(names, self._runner)
        self.deliveries = DeliveredCalls(names, self._runner, self._timing.claim_ms)
        self._queues: list[SharedQueue] = []
        self._reader = FrontReader(client, names, self._runner, self._on_message, self._on_bell)
        self._epoch: bytes | None = None
        self._has_changed = Event()
        self._greenlet: gevent.Greenlet | None = None

    def add(
        self,
        domain: str,
        dispatcher: SharedDispatcher,
        *,
        max_calls: int,
        max_bytes: int,
        falls_back: bool,
    ) -> SharedQueue:
        """Shares the calls of one dispatcher. `domain`: what other fronts call dispatchers with the same keys."""
        health = self._client.health
        consumer = QueueConsumer(
            domain, dispatcher, self._names, self._runner, health, self.deliveries, self._timing, self._on_epoch
        )
        queue = SharedQueue(
            domain, health, self.accepted, consumer, max_calls=max_calls, max_bytes=max_bytes, falls_back=falls_back
        )
        self._queues.append(queue)
        return queue

    def start(self) -> None:
        """Begins to take calls out of the queues. The client has been started."""
        self._client.health.on_change(lambda is_up: self._has_changed.set() if is_up else None)
        self._runner.start()
        self._reader.start()
        for queue in self._queues:
            queue.consumer.start()
        self._greenlet = gevent.spawn(self._keep_up)

    def stop(self) -> None:
        """Takes no more calls out of the queues, and puts none in. Those that run go on."""
        for queue in self._queues:
            queue.stop()

    def close(self) -> None:
        """Ends everything here; waits a second at most for what Redis is to hear. Twice is harmless."""
        self.stop()
        for queue in self._queues:
            queue.consumer.close()
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None
        self._reader.close()
        self._runner.flush(LAST_WORDS)
        self._runner.close()

    # What others tell.

    def _on_message(self, message: Mapping[bytes, bytes]) -> None:
        call, kind = message[b"c"].decode("utf-8", "replace"), message[b"k"]
        if kind in (b"cancel", b"ack"):
            self.deliveries.on_message(call, kind, message)
        else:
            self.accepted.on_message(call, kind, message)

    def _on_bell(self, name: str, is_idle: bool) -> None:
        for queue in self._queues:
            queue.consumer.on_bell(name, is_idle)

    # Upkeep.

    def _on_epoch(self, epoch: bytes) -> None:
        """Learns the id of Redis' run: another one means that it was restarted, and may have forgotten the last."""
        if self._epoch not in (None, epoch):
            self._has_changed.set()
        self._epoch = epoch

    def _keep_up(self) -> None:
        round_number = 0
        while True:
            self._has_changed.wait(self._timing.renew * random.uniform(0.8, 1.0))
            try:
                if self._has_changed.is_set():
                    self._has_changed.clear()
                    self._recover()
                if not self._client.health.is_up:
                    continue
                round_number += 1
                self.deliveries.renew()
                for queue in self._queues:
                    if round_number % CLAIM_ROUNDS == 0:
                        queue.consumer.is_claim_due = True
                    queue.refuse_unservable()
                if round_number % CHECK_ROUNDS == 0:
                    self.accepted.check()
            except CorosrvError as error:
                log.debug("the upkeep of the shared queue has to wait: %s", error)
            except Exception:
                log.exception("the upkeep of the shared queue failed by a bug")

    def _recover(self) -> None:
        """Tells Redis, which was away and may have forgotten the last, what runs here and what is over. Waits."""
        self.deliveries.reassert()
        self.accepted.remove_orphans([stream for queue in self._queues for stream in queue.consumer.streams()])
        self.accepted.check()
        log.info("%d calls wait in the shared queue, %d run here", len(self.accepted), len(self.deliveries))
