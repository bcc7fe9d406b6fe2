"""Asks the other fronts to abort a group of requests, and aborts here what they ask for.

They talk over channels of Redis, followed on one connection (`Subscription`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import gevent
import msgspec
from gevent.queue import SimpleQueue

from corosrv.base.errors import CorosrvError
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.namespace import KeyNames

log = logging.getLogger("corosrv.cluster")

LONGEST_READ = 10.0  # seconds that a read waits
PAUSE = 1.0  # seconds before channels are subscribed to anew


class Subscription:
    """Hands over what is published on some channels, from its start on. Belongs to the hub's thread.

    What is published while Redis is away, or before it was subscribed to again, is missed.
    """

    def __init__(self, client: RedisClient, listeners: Mapping[str, Callable[[bytes], object]]) -> None:
        """`listeners`: called with each message of their channel. They must not wait."""
        self._client = client
        self._listeners = {channel.encode(): listener for channel, listener in listeners.items()}
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Follows them no more. Twice is harmless."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def _run(self) -> None:
        connection = self._client.open_blocking(LONGEST_READ)
        try:
            while True:
                try:
                    connection.send("SUBSCRIBE", *(channel.decode() for channel in self._listeners))
                    while True:
                        self._hand_over(connection.receive(LONGEST_READ))
                except CorosrvError:
                    connection.close()
                gevent.sleep(PAUSE)
        finally:
            connection.close()

    def _hand_over(self, reply: list[bytes] | None) -> None:
        if reply is None or reply[0] != b"message":
            return
        _, channel, data = reply
        try:
            self._listeners[channel](data)
        except msgspec.MsgspecError:
            log.warning("what was published in %s is no message of a corosrv, and is dropped", channel.decode())
        except Exception:
            log.exception("what another server published could not be taken, by a bug")


LONGEST_WAIT = 2.0  # seconds in which the other fronts say how many requests they had


class AbortsGroup(Protocol):
    """Ends the requests of a caller's group in this process."""

    def __call__(self, caller: str, name: str, *, keeps_partial: bool) -> int:
        """Returns how many there were. Never waits."""


class GroupAbort(msgspec.Struct, array_like=True, frozen=True):
    """Asks each front to abort a group, and to tell the one that asks."""

    front: str
    number: int
    caller: str
    name: str
    keeps_partial: bool


class GroupAbortCount(msgspec.Struct, array_like=True, frozen=True):
    """Answers a GroupAbort."""

    number: int
    n_requests: int


class GroupAborts:
    """Passes aborts of groups between the fronts of a Redis. Belongs to the hub's thread."""

    def __init__(self, client: RedisClient, names: KeyNames, front: str, abort_here: AbortsGroup) -> None:
        self._client = client
        self._names = names
        self._front = front
        self._abort_here = abort_here
        self._numbers = itertools.count(1)
        # To the aborts that were asked for here, by their numbers: how many requests each front had.
        self._answers: dict[int, SimpleQueue[int]] = {}
        self._subscription = Subscription(
            client, {self._asking: self._on_abort, self._answering(front): self._on_aborted}
        )

    def start(self) -> None:
        self._subscription.start()

    def close(self) -> None:
        """Listens no more. Twice is harmless."""
        self._subscription.close()

    @property
    def n_asking(self) -> int:
        """The number of aborts that wait for what the other fronts answer."""
        return len(self._answers)

    def abort_elsewhere(self, caller: str, name: str, *, keeps_partial: bool) -> int:
        """Asks all other fronts to abort a group; returns how many requests they ended. Waits.

        Waits LONGEST_WAIT at most: a front that answers later is not counted. Without Redis there are no others.
        """
        number, n_requests = next(self._numbers), 0
        answers = self._answers[number] = SimpleQueue()
        abort = msgspec.msgpack.encode(GroupAbort(self._front, number, caller, name, keeps_partial))
        try:
            n_fronts = self._client.execute("PUBLISH", self._asking, abort)
            with gevent.Timeout(LONGEST_WAIT, False):
                for _ in range(n_fronts):
                    n_requests += answers.get()
        except CorosrvError as error:
            log.warning("an abort of a group reached this server alone: %s", error)
        finally:
            del self._answers[number]
        return n_requests

    def _on_abort(self, data: bytes) -> None:
        abort = msgspec.msgpack.decode(data, type=GroupAbort)
        is_own = abort.front == self._front  # it has ended its own requests, and is counted among the fronts
        n_requests = 0 if is_own else self._abort_here(abort.caller, abort.name, keeps_partial=abort.keeps_partial)
        gevent.spawn(self._answer, abort, n_requests)

    def _answer(self, abort: GroupAbort, n_requests: int) -> None:
        answer = msgspec.msgpack.encode(GroupAbortCount(abort.number, n_requests))
        try:
            self._client.execute("PUBLISH", self._answering(abort.front), answer)
        except CorosrvError as error:
            log.debug("whoever aborted a group does not hear of this server: %s", error)

    def _on_aborted(self, data: bytes) -> None:
        answer = msgspec.msgpack.decode(data, type=GroupAbortCount)
        if (answers := self._answers.get(answer.number)) is not None:
            answers.put(answer.n_requests)

    @property
    def _asking(self) -> str:
        return self._names.name("groups", "abort")

    def _answering(self, front: str) -> str:
        return self._names.name("groups", "aborted", front)
