"""Keeps large values that calls pass to each other by reference: with a time to live, within a quota.

Each object is seen by its caller alone. Contents are immutable, so a reader sees all of one version or none. Small ones
are bytes, large ones sealed memory files that can be passed on to workers; none is a file on the disk: nothing is left
behind by a server that was killed, and no name can be guessed.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import NotOffered, ObjectExpired, ObjectNotFound, ObjectTooLarge, Refused, StoreFull
from corosrv.contracts.jobs.infer import ObjRef
from corosrv.workers.wire import descriptors

MIN_FILE = 64 << 10  # bytes; smaller contents need no descriptor


class ObjectContent:
    """Holds immutable bytes. Owns the memory file, if there is one; whoever passes the descriptor on duplicates it."""

    __slots__ = ("_bytes", "fd", "size")

    def __init__(self, data: bytes = b"", fd: int | None = None, size: int = 0) -> None:
        """Takes either bytes, or a sealed memory file of `size` bytes, which is the content's from now on."""
        self._bytes = data
        self.fd = fd  # of the memory file; None for a small content, and after close()
        self.size = size if fd is not None else len(data)

    @classmethod
    def copy(cls, pieces: Iterable[bytes | memoryview]) -> ObjectContent:
        """Copies pieces into a content, which chooses its form by their size. Raises OSError."""
        pieces = list(pieces)
        size = sum(map(len, pieces))
        if size < MIN_FILE:
            return cls(b"".join(pieces))
        return cls(fd=descriptors.make(pieces), size=size)

    def view(self) -> memoryview:
        """Returns the bytes, without a copy. The view stays valid after close()."""
        if self.fd is None:
            return memoryview(self._bytes)
        return descriptors.map_value(self.fd, self.size)

    def close(self) -> None:
        """Closes the descriptor; views stay valid. Twice is harmless."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)


_KEY = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def check_key(key: str) -> None:
    """Raises Refused unless the key has 1 to 200 of the characters that keys may have."""
    if not _KEY.fullmatch(key):
        raise Refused(f"an object's key has 1 to 200 of A-Z a-z 0-9 . _ : -, not {key[:220]!r}", "key")


MAX_TTL = 7 * 86_400.0  # seconds
MAX_OBJECTS = 4096  # at once: each takes some memory beside its bytes, and a large one a descriptor
_REMEMBERED = 10_000  # ids of objects that are gone, which are told as expired


@dataclass(slots=True)
class StoredObject:
    """Describes one object and how it is used."""

    ref: ObjRef
    caller: str
    content: ObjectContent
    expires: float  # on the clock that the store is used with
    n_pins: int = 0  # running calls that use it


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Holds the counts of a store. `n_evicted` were removed before their time, to make room."""

    n_objects: int
    n_bytes: int
    limit: int
    n_evicted: int
    n_expired: int


@dataclass(slots=True)
class _CallerUse:
    """Counts what one caller holds."""

    n_objects: int = 0
    n_bytes: int = 0


class FoundObject(NamedTuple):
    """An object that another process of the server keeps."""

    content: bytes
    content_type: str
    etag: str


class ObjectStore:
    """Keeps objects. When it is full, it evicts those of the caller that holds most.

    Times are of time.monotonic(), passed in by the caller; nothing waits.

    Needs no lock on one hub: no step switches.
    """

    def __init__(
        self,
        max_bytes: int = 1 << 30,
        max_object: int = 64 << 20,
        max_objects: int = MAX_OBJECTS,
        find_elsewhere: Callable[[str, str], FoundObject | None] = lambda object_id, caller: None,
    ) -> None:
        """`find_elsewhere`: looks for a caller's object that is not here; may wait."""
        self.max_object = max_object
        self.find_elsewhere = find_elsewhere
        self._max_objects = max_objects
        self._max_bytes = max_bytes
        self._objects: OrderedDict[str, StoredObject] = OrderedDict()  # the least recently read first
        self._by_key: dict[tuple[str, str], str] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()  # id and caller
        self._n_bytes = 0
        self._held: defaultdict[str, _CallerUse] = defaultdict(_CallerUse)  # by caller
        self._n_evicted = 0
        self._n_expired = 0

    def create(
        self,
        content: ObjectContent,
        sha256: str,
        now: float,
        *,
        caller: str = "",
        key: str = "",
        ttl_s: float = 3600.0,
        content_type: str = "application/octet-stream",
    ) -> ObjRef:
        """Stores a content, which is the store's from now on, also if this raises.

        With a key, it replaces what `lookup` finds; references to the earlier object stay valid. Raises Refused,
        ObjectTooLarge and StoreFull.
        """
        try:
            self._check(content, key, ttl_s, content_type)
            self._make_room(caller, content.size, now)
        except Exception:
            content.close()
            raise
        object_id = secrets.token_hex(16)
        expires = now + ttl_s
        expires_ms = round((time.time() + ttl_s) * 1000)
        ref = ObjRef(object_id, content.size, sha256, content_type, expires_ms, key)
        self._objects[object_id] = StoredObject(ref, caller, content, expires)
        self._n_bytes += content.size
        held = self._held[caller]
        held.n_objects += 1
        held.n_bytes += content.size
        if key:
            self._by_key[caller, key] = object_id
        return ref

    def _check(self, content: ObjectContent, key: str, ttl_s: float, content_type: str) -> None:
        if key:
            check_key(key)
        if not 0 < ttl_s <= MAX_TTL:
            raise Refused(f"ttl_s must be above 0 and at most {MAX_TTL:g} seconds, not {ttl_s:g}", "ttl_s")
        if not content_type.isprintable() or not content_type.isascii() or len(content_type) > 200:
            raise Refused("content_type must be at most 200 printable ASCII characters", "content_type")
        if content.size > self.max_object:
            raise ObjectTooLarge(content.size, self.max_object)

    def _make_room(self, caller: str, size: int, now: float) -> None:
        if not self._has_room(size):
            self.sweep(now)
        while not self._has_room(size):
            victim = self._find_victim(caller, size)
            if victim is None:
                raise StoreFull(self._max_bytes)
            self._remove(victim)
            self._n_evicted += 1

    def _find_victim(self, caller: str, size: int) -> StoredObject | None:
        """Returns the object to remove for one of this caller: the least recently read one of whoever holds most.

        It is never one of a caller who holds less than this one will. None where all others are in use.
        """
        is_short_of_bytes = self._n_bytes + size > self._max_bytes
        held = {name: use.n_bytes if is_short_of_bytes else use.n_objects for name, use in self._held.items()}
        held[caller] = held.get(caller, 0) + (size if is_short_of_bytes else 1)
        for name in sorted(held, key=lambda name: (held[name], name == caller), reverse=True):
            for stored in self._objects.values():
                if stored.caller == name and not stored.n_pins:
                    return stored
            if name == caller:
                break
        return None

    def _has_room(self, size: int) -> bool:
        return self._n_bytes + size <= self._max_bytes and len(self._objects) < self._max_objects

    def lookup(self, key: str, now: float, caller: str = "") -> ObjRef | None:
        """Returns the object that was stored last under a key; None if there is none, or no longer."""
        object_id = self._by_key.get((caller, key))
        stored = self._objects.get(object_id) if object_id is not None else None
        return stored.ref if stored is not None and stored.expires > now else None

    def get(self, object_id: str, now: float, caller: str = "") -> StoredObject:
        """Returns an object, which counts as read. Raises ObjectNotFound and ObjectExpired."""
        stored = self._objects.get(object_id)
        if stored is None:
            if self._gone.get(object_id) == caller:
                raise ObjectExpired(object_id)
            raise ObjectNotFound(object_id)
        if stored.caller != caller:
            raise ObjectNotFound(object_id)
        if stored.expires <= now:
            raise ObjectExpired(object_id)
        self._objects.move_to_end(object_id)
        return stored

    @contextmanager
    def pinned(self, object_id: str, now: float, caller: str = "") -> Iterator[StoredObject]:
        """Keeps an object from being evicted or removed while it is used. Raises what `get` raises."""
        stored = self.get(object_id, now, caller)
        stored.n_pins += 1
        try:
            yield stored
        finally:
            stored.n_pins -= 1

    def delete(self, object_id: str, now: float, caller: str = "") -> None:
        """Removes an object; views of its content stay valid. Raises what `get` raises."""
        self._remove(self.get(object_id, now, caller), is_remembered=False)

    def sweep(self, now: float) -> None:
        """Removes objects whose time is over and which nobody uses."""
        expired = [stored for stored in self._objects.values() if stored.expires <= now and not stored.n_pins]
        for stored in expired:
            self._remove(stored)
            self._n_expired += 1

    def _remove(self, stored: StoredObject, is_remembered: bool = True) -> None:
        ref = stored.ref
        del self._objects[ref.id]
        self._n_bytes -= ref.size
        held = self._held[stored.caller]
        held.n_objects -= 1
        held.n_bytes -= ref.size
        if not held.n_objects:
            del self._held[stored.caller]
        if self._by_key.get((stored.caller, ref.key)) == ref.id:
            del self._by_key[stored.caller, ref.key]
        if is_remembered:
            self._gone[ref.id] = stored.caller
            while len(self._gone) > _REMEMBERED:
                self._gone.popitem(last=False)
        stored.content.close()

    def close(self) -> None:
        """Drops all objects. Twice is harmless."""
        for stored in list(self._objects.values()):
            self._remove(stored)

    def refs(self) -> list[ObjRef]:
        """Returns the references of all objects, the least recently read first."""
        return [stored.ref for stored in self._objects.values()]

    @property
    def stats(self) -> StoreStats:
        return StoreStats(len(self._objects), self._n_bytes, self._max_bytes, self._n_evicted, self._n_expired)


def content_of(store: ObjectStore | None, object_id: str, caller: str) -> memoryview:
    """Returns the content of a caller's object, to which an input refers. May wait for other processes.

    Raises ObjectNotFound and ObjectExpired, and NotOffered where the server has no store.
    """
    if store is None:
        raise NotOffered("this server stores no objects: it serves no application")
    try:
        return store.get(object_id, time.monotonic(), caller).content.view()
    except ObjectNotFound:
        if (found := store.find_elsewhere(object_id, caller)) is None:
            raise
        return memoryview(found.content)


class ObjectCollector(Collector):
    """Reads a store's numbers at each scrape."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        stats = self._store.stats
        yield GaugeMetricFamily("corosrv_objects", "Objects that are stored", stats.n_objects)
        yield GaugeMetricFamily("corosrv_objects_bytes", "Bytes of their contents", stats.n_bytes)
        yield CounterMetricFamily("corosrv_objects_evicted", "Objects removed to make room", stats.n_evicted)
        yield CounterMetricFamily(
            "corosrv_objects_expired", "Objects removed when their time was over", stats.n_expired
        )
