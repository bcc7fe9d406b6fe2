"""Tells other fronts what this one serves, and keeps a copy of what they do.

Each front stands in Redis under an id that no process had before. Look-ups read the copy and never ask Redis.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import gevent
import gevent.event
import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.group_aborts import Subscription
from corosrv.fleet.cluster.namespace import KeyNames

log = logging.getLogger("corosrv.cluster")


def host_name() -> str:
    """Returns the machine's name in characters that stand in keys as they are."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60]


def new_front_id() -> str:
    """Returns an id that no front has had before: each start of a process makes a new one."""
    return f"{host_name()}-{os.getpid()}-{secrets.token_hex(4)}"


MAX_BYTES = 4 << 20  # of one front's description


class FrontOffer(msgspec.Struct, frozen=True):
    """Says what one front serves. `handlers`: by domain, the word that each front has for the same dispatcher.

    `peer_url`, `peer_proof`: where it answers for its peers, if it does, and a proof that it is one of them.
    """

    host: str = ""  # for people
    models: list[str] = []  # that its own engine serves
    handlers: dict[str, list[HandlerCard]] = {}
    peer_url: str = ""
    peer_proof: str = ""


@dataclass(frozen=True, slots=True)
class FrontRecord:
    """Holds what another front said of itself. `version` changes with it."""

    id: str
    version: bytes
    served: FrontOffer = field(default_factory=FrontOffer)


_DECODER = msgspec.msgpack.Decoder(FrontOffer)


def encode(served: FrontOffer) -> tuple[bytes, bytes]:
    """Returns the bytes that stand for a description, and its version."""
    body = msgspec.msgpack.encode(served)
    return body, hashlib.blake2b(body, digest_size=8).hexdigest().encode()


def decode(id: str, version: bytes, body: bytes) -> FrontRecord:
    """Reads a description. One that cannot be read, or is too large, serves nothing: others may write to Redis too."""
    if len(body) <= MAX_BYTES:
        try:
            return FrontRecord(id, version, _DECODER.decode(body))
        except msgspec.MsgspecError:
            pass
    return FrontRecord(id, version)


EXPIRY = 10.0  # seconds after which a front that says nothing is gone
RENEWAL = 3.0  # seconds between two times at which a front says that it is there
READ_INTERVAL = 1.0  # seconds between two looks at what others serve; a notice of a change brings one at once
MAX_FRONTS = 1000

# The times of all fronts are those of Redis's own clock.
_NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
# KEYS: fronts, this front's hash. ARGV: id, version, body, expiry in ms, channel.
_WRITE = f"""{_NOW}
local old = redis.call('HGET', KEYS[2], 'version')
redis.call('HSET', KEYS[2], 'version', ARGV[2], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[4])
if old ~= ARGV[2] then redis.call('PUBLISH', ARGV[5], ARGV[1]) end
"""
# KEYS: fronts, this front's hash. ARGV: id, channel.
_REMOVE = """
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[1])
"""


class FrontRegistry:
    """Registers this front under its id, and knows the others. Belongs to the hub's thread.

    What others serve is read from the copy, which is at most about a second old: no look-up asks Redis. A front that
    died is forgotten within EXPIRY seconds, and so are all others that long after Redis is gone.
    """

    def __init__(
        self,
        client: RedisClient,
        names: KeyNames,
        front: str,
        describe: Callable[[], FrontOffer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`describe`: says what this front serves now. It is called once a second, and must not wait."""
        self.front = front
        # Gets all other fronts at each look, and must not wait.
        self.on_read: Callable[[Iterable[FrontRecord]], None] = lambda records: None
        self._client = client
        self._names = names
        self._describe = describe
        self._clock = clock
        self._write = client.script(_WRITE)
        self._remove = client.script(_REMOVE)
        self._records: dict[str, FrontRecord] = {}
        self._read_at = clock()
        self._written: tuple[bytes, float] = (b"", -EXPIRY)  # the version, and when
        self._has_left = False
        self._wake = gevent.event.Event()
        self._notices = Subscription(client, {self._channel: lambda message: self._wake.set()})
        self._greenlet: gevent.Greenlet | None = None
        client.health.on_change(self._on_link)

    # What others serve.

    @property
    def other_fronts(self) -> tuple[FrontRecord, ...]:
        """Returns the other fronts, by their ids."""
        return tuple(self._records[id] for id in sorted(self._records))

    # The life of this front.

    def start(self) -> None:
        """Registers this front, and begins to follow the others."""
        self._greenlet = gevent.spawn(self._run)
        self._notices.start()

    def leave(self) -> None:
        """Tells the others soon that this front serves nothing any more. Twice is harmless."""
        self._has_left = True
        self._wake.set()

    def close(self) -> None:
        """Ends it, and removes this front from Redis if that answers."""
        self._notices.close()
        if self._greenlet is None:
            return
        self._greenlet.kill(block=False)
        self._greenlet = None
        if self._client.health.is_up:
            try:
                self._remove.run(self._keys(), [self.front, self._channel])
            except CorosrvError as error:
                log.debug("this front stays registered for %g s: %s", EXPIRY, error)

    def update(self) -> None:
        """Writes what this front serves if that is due, and reads what others do. Raises RedisUnavailable."""
        now = self._clock()
        body, version = encode(FrontOffer() if self._has_left else self._describe())
        if version != self._written[0] or now >= self._written[1] + RENEWAL:
            self._write.run(self._keys(), [self.front, version, body, int(EXPIRY * 1000), self._channel])
            self._written = (version, now)
        self._replace(self._read())
        self._read_at = now
        self.on_read(self.other_fronts)

    def step(self) -> None:
        """Updates if Redis answers; if it has not for EXPIRY seconds, forgets the other fronts. Raises nothing."""
        try:
            self.update()
        except CorosrvError as error:
            log.debug("the registry of fronts waits: %s", error)
            if self._clock() >= self._read_at + EXPIRY:
                self._replace({})
        except Exception:
            log.exception("the registry of fronts failed")

    def _run(self) -> None:
        while True:
            self._wake.clear()
            self.step()
            self._wake.wait(READ_INTERVAL)

    def _read(self) -> dict[str, FrontRecord]:
        """Reads the other fronts: of those that have not changed nothing but their versions."""
        ids = [id.decode("utf-8", "replace") for id in self._client.execute("ZRANGE", self._keys()[0], 0, MAX_FRONTS)]
        ids = [id for id in ids if id != self.front]
        versions = self._client.execute_all([("HGET", self._hash_of(id), "version") for id in ids])
        known = {id: version for id, version in zip(ids, versions, strict=True) if isinstance(version, bytes)}
        records = {id: self._records[id] for id in known if self._is_known(id, known[id])}
        changed = [id for id in known if id not in records]
        hashes = self._client.execute_all([("HMGET", self._hash_of(id), "version", "body") for id in changed])
        for id, reply in zip(changed, hashes, strict=True):
            if isinstance(reply, list) and all(isinstance(field, bytes) for field in reply):
                records[id] = decode(id, *reply)
        return records

    def _is_known(self, id: str, version: bytes) -> bool:
        return id in self._records and self._records[id].version == version

    def _replace(self, records: Mapping[str, FrontRecord]) -> None:
        if _versions(records.values()) == _versions(self._records.values()):
            return
        for id in records.keys() - self._records.keys():
            log.info("front %s is there", id)
        for id in self._records.keys() - records.keys():
            log.info("front %s is gone", id)
        self._records = dict(records)

    def _on_link(self, is_up: bool) -> None:
        if is_up:  # what Redis knew may be lost
            self._written = (b"", -EXPIRY)
            self._wake.set()

    def _keys(self) -> list[str]:
        return [self._names.name("fronts"), self._hash_of(self.front)]

    def _hash_of(self, front: str) -> str:
        return self._names.name("served", front)

    @property
    def _channel(self) -> str:
        return self._names.name("fronts", "changed")


def _versions(records: Iterable[FrontRecord]) -> dict[str, bytes]:
    return {record.id: record.version for record in records}
