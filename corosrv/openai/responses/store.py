"""Responses that were answered, for as long as there is room: to be read again, and to go on from."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import msgspec

from corosrv.chat.turns import Turn
from corosrv.errors import NotFound


def item_id(kind: str, key: str, number: int) -> str:
    """Of an item of the response whose id is made of the same key."""
    return f"{kind}_{key}{number:04x}"


def response_of(item_id: str) -> str:
    """The id of the response that an item is of."""
    return "resp_" + item_id.partition("_")[2][:-4]


class Stored(msgspec.Struct):
    """A response as it was answered, and the conversation up to and with it."""

    response: dict[str, Any]
    turns: tuple[Turn, ...]


class ResponseStore:
    """Everybody's stored responses, within `max_bytes`; the one that was not asked for longest goes first.

    Kept as bytes, so that their size is known and the garbage collector has nothing to walk. Usable from any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._room = max_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = Lock()

    def shelf(self, owner: str) -> Shelf:
        """What belongs to one caller."""
        return Shelf(self, owner)

    def put(self, key: tuple[str, str], kept: bytes) -> None:
        with self._lock:
            if len(kept) > self._max_bytes:
                return
            self._kept[key] = kept
            self._room -= len(kept)
            while self._room < 0:
                _, oldest = self._kept.popitem(last=False)
                self._room += len(oldest)

    def get(self, key: tuple[str, str]) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def drop(self, key: tuple[str, str]) -> bool:
        """Whether it was there."""
        with self._lock:
            kept = self._kept.pop(key, None)
            self._room += len(kept or b"")
            return kept is not None


_stored = msgspec.json.Decoder(Stored)


class Shelf:
    """One caller's stored responses: those of others are not found here, whatever their ids."""

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    def put(self, stored: Stored) -> None:
        self._store.put((self._owner, stored.response["id"]), msgspec.json.encode(stored))

    def get(self, id: str, param: str | None = None) -> Stored:
        """Raises NotFound; `param` is where the id stood."""
        kept = self._store.get((self._owner, id))
        if kept is None:
            raise _not_found(id, param)
        return _stored.decode(kept)

    def item(self, id: str, param: str) -> dict[str, Any]:
        """An item of a stored response's output, whose id holds the response's. Raises NotFound."""
        try:
            output = self.get(response_of(id)).response["output"]
        except NotFound:
            output = ()
        for item in output:
            if item["id"] == id:
                return dict(item)
        raise NotFound(f"no item '{id[:80]}' is stored here: send the item itself", param, "item_not_found")

    def drop(self, id: str) -> None:
        """Raises NotFound."""
        if not self._store.drop((self._owner, id)):
            raise _not_found(id, None)


def _not_found(id: str, param: str | None) -> NotFound:
    return NotFound(f"no response '{id[:80]}' is stored here", param, "response_not_found")
