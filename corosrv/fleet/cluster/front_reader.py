"""Reads what other fronts tell this one, and the bell of the shared queues, on one connection."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent

from corosrv.base.errors import CorosrvError
from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.connection import BlockingConnection, RedisClient
from corosrv.fleet.cluster.queue_names import QueueNames
from corosrv.fleet.cluster.script_runner import ScriptRunner

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
